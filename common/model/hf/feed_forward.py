"""What the feed-forward part of a layer of `transformers` is made of: a plain one, or experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from common.model.hf.layers import linear_weights
from common.model.llama import Curve, Gate, Linear, Mixture, Mlp

_MIXTURES = {
    "Dots1MoE",
    "FlexOlmoSparseMoeBlock",
    "Glm4MoeMoE",
    "MiniMaxM2SparseMoeBlock",
    "MixtralSparseMoeBlock",
    "OlmoeSparseMoeBlock",
    "Qwen2MoeSparseMoeBlock",
    "Qwen3MoeSparseMoeBlock",
    "Qwen3VLMoeTextSparseMoeBlock",
}
"""Classes of such as are experts."""

_SIGMOID = {"Dots1TopkRouter", "Glm4MoeTopkRouter", "MiniMaxM2TopKRouter"}
"""Routers that take every score by itself."""

_SUMMED = {"MiniMaxM2TopKRouter", "MixtralTopKRouter", "Qwen3VLMoeTextTopKRouter"}
"""Routers whose weights always add up to one."""

_GROUPED = {"Dots1TopkRouter", "Glm4MoeTopkRouter"}
"""Routers that may choose among groups of experts first."""

_GATES = {"GELUTanh": Gate(Curve.GELU), "SiLU": Gate(), "SiLUActivation": Gate()}
"""By the class of a gate's curve."""

_PRODUCTS = ("gate_proj", "up_proj", "gate_up_proj", "down_proj", "shared_expert_gate")
"""What a part calls the products that it may have."""


def feed_forward_of(mlp: Any) -> Mlp | Mixture:
    """What a part of a layer is made of, see `knows`."""
    return _mixture(mlp) if is_mixture(mlp) else _mlp(mlp)


def is_mixture(mlp: Any) -> bool:
    """Whether a part is experts of which a row takes some."""
    return type(mlp).__name__ in _MIXTURES


def knows(mlp: Any, dtype: torch.dtype) -> bool:
    """Whether experts of a part, if it has any, are plain and chosen in a way that is known."""
    if not is_mixture(mlp):
        return True
    router, experts = mlp.gate, mlp.experts
    weights = [getattr(experts, name, None) for name in ("gate_up_proj", "down_proj")]
    groups = getattr(router, "num_group", None) if type(router).__name__ in _GROUPED else 1
    return (
        all(_is_plain(each, dtype) for each in (router.weight, *weights))
        and router.top_k <= len(router.weight)
        and groups == 1
        and experts.down_proj.shape[2] % 2 == 0
    )


def inner_of(mlp: Any) -> int:
    """Numbers between the two products of what all rows take of a part; 0 without."""
    part = _shared(mlp) if is_mixture(mlp) else mlp
    return 0 if part is None else linear_of(part.down_proj).weight.shape[1]


def gate_of(mlp: Any) -> Gate | None:
    """How a part gates; None where its curve is not known."""
    return _GATES.get(curve_of(mlp))


def curve_of(mlp: Any) -> str:
    """What the gate of a part is bent by: the name of a class."""
    mlp = mlp.experts if is_mixture(mlp) else mlp
    return type(mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn).__name__


def products_of(mlp: Any) -> Iterator[nn.Module]:
    """Those of a part that are layers, among them those of an expert that all rows take."""
    for part in (mlp, _shared(mlp)):
        yield from (getattr(part, name) for name in _PRODUCTS if hasattr(part, name))


def linear_of(layer: nn.Module) -> Linear:
    """The map that a layer is, a plain one."""
    found = linear_weights(layer)
    assert found is not None, "not a plain one"
    return Linear(*found)


def _mlp(mlp: Any) -> Mlp:
    if hasattr(mlp, "gate_up_proj"):
        gate_up = linear_of(mlp.gate_up_proj)
    else:
        gate_up = Linear.joined(linear_of(mlp.gate_proj), linear_of(mlp.up_proj))
    return Mlp(gate_up, linear_of(mlp.down_proj))


def _mixture(mixture: Any) -> Mixture:
    router, experts, shared = mixture.gate, mixture.experts, _shared(mixture)
    weights = zip(experts.gate_up_proj.data, experts.down_proj.data, strict=True)
    scores, kind = [router.weight.data], type(router).__name__
    if hasattr(mixture, "shared_expert_gate"):
        scores.append(linear_of(mixture.shared_expert_gate).weight)
    favours = getattr(mixture, "e_score_correction_bias", None)
    return Mixture(
        router=Linear(torch.cat(scores), None),
        favours=getattr(router, "e_score_correction_bias", favours),
        experts=[Mlp(Linear(gate_up, None), Linear(down, None)) for gate_up, down in weights],
        shared=None if shared is None else _mlp(shared),
        chosen=router.top_k,
        sigmoid=kind in _SIGMOID,
        summed=kind in _SUMMED or router.norm_topk_prob,
        scale=float(getattr(router, "routed_scaling_factor", 1)),
    )


def _is_plain(weight: Any, dtype: torch.dtype) -> bool:
    return weight is not None and type(weight.data) is Tensor and weight.dtype == dtype


def _shared(mlp: Any) -> Any:
    """The expert of a part that all rows take; None where there is none."""
    return getattr(mlp, "shared_expert", getattr(mlp, "shared_experts", None))
