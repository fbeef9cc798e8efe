"""What the feed-forward part of a layer of `transformers` is made of: a plain one, or experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from common.model.hf.layers import linear_weights
from common.model.llama import Curve, Gate, Linear, Mixture, MixtureNorms, Mlp

_MIXTURES = {
    "DeepseekV2Moe",
    "DeepseekV3MoE",
    "Dots1MoE",
    "Ernie4_5_MoeSparseMoeBlock",
    "ExaoneMoeSparseMoEBlock",
    "FlexOlmoSparseMoeBlock",
    "Glm4MoeLiteMoE",
    "Glm4MoeMoE",
    "GptOssMLP",
    "HYV3MoE",
    "MellumSparseMoeBlock",
    "MiniMaxM2SparseMoeBlock",
    "MixtralSparseMoeBlock",
    "OlmoeSparseMoeBlock",
    "Qwen2MoeSparseMoeBlock",
    "Qwen3MoeSparseMoeBlock",
    "Qwen3VLMoeTextSparseMoeBlock",
    "SolarOpenMoE",
}
"""Classes of such as are experts."""

_GROUPED = {
    "DeepseekV3TopkRouter",
    "Dots1TopkRouter",
    "ExaoneMoeTopkRouter",
    "Glm4MoeLiteTopkRouter",
    "Glm4MoeTopkRouter",
    "SolarOpenTopkRouter",
}
"""Routers that may choose among groups of experts first."""

_SIGMOID = _GROUPED | {"HYV3TopKRouter", "MiniMaxM2TopKRouter"}
"""Routers that take every score by itself."""

_BESIDE = "Gemma4TextRouter"
"""The router of experts that stand beside the plain part of a layer, with norms of their own."""

_SUMMED = {
    _BESIDE,
    "Ernie4_5_MoeTopKRouter",
    "GptOssTopKRouter",
    "HYV3TopKRouter",
    "MiniMaxM2TopKRouter",
    "MixtralTopKRouter",
    "Qwen3VLMoeTextTopKRouter",
}
"""Routers whose weights always add up to one."""

_GATES = {"GELUTanh": Gate(Curve.GELU), "SiLU": Gate(), "SiLUActivation": Gate()}
"""By the class of a gate's curve."""

_ALTERNATING = {"GptOssExperts"}
"""Experts whose gates are clamped and alternate with what they gate; their weights are `[in, out]`,
and they have biases."""

_BY_CHANCE = "DeepseekV2TopkRouter"
"""The router whose weights are never made to add up to one."""

_SCALES = "routed_scaling_factor", "router_scaling_factor"
"""What routers call what the weights of those they chose are multiplied by."""

_SHARED = "shared_expert", "shared_experts", "mlp"
"""What that is called which all rows take beside experts."""

_WEIGHTS = "gate_up_proj", "down_proj"
"""What experts call theirs."""

_PRODUCTS = ("gate_proj", "up_proj", "gate_up_proj", "down_proj", "shared_expert_gate", "proj")
"""What a part calls the products that it may have."""


def feed_forward_of(layer: Any) -> Mlp | Mixture:
    """What this part of a layer is made of, see `knows`."""
    mixture = _mixture_of(layer)
    return _mlp(layer.mlp) if mixture is None else _mixture(mixture)


def has_experts(layer: Any) -> bool:
    """Whether a layer has experts of which a row takes some."""
    return _mixture_of(layer) is not None


def _stands_beside(layer: Any) -> bool:
    """Whether these stand beside the plain part of a layer, with norms of their own."""
    return bool(getattr(layer, "enable_moe_block", False))


def knows(layer: Any, dtype: torch.dtype) -> bool:
    """Whether experts of a layer, if it has any, are plain and chosen in a way that is known."""
    mixture = _mixture_of(layer)
    if mixture is None:
        return True
    router, experts = _router(mixture), mixture.experts
    scores = _scores(router)
    weights = [getattr(experts, name, None) for name in _WEIGHTS]
    alternate = _alternate(experts)
    if alternate:
        weights += [router.bias, *(getattr(experts, f"{name}_bias", None) for name in _WEIGHTS)]
    return (
        all(_is_plain(each, dtype) for each in weights)
        and (_is_plain(scores, dtype) or _is_plain(scores, torch.float32))
        and 0 < _chosen(router) <= len(scores)
        and _groups(router) == 1
        and experts.down_proj.shape[1 if alternate else 2] % 2 == 0
        and (not alternate or experts.limit > 0)
    )


def inner_of(mlp: Any) -> int:
    """Numbers between the two products of what all rows take of a part; 0 without."""
    part = _shared(mlp) if _is_mixture(mlp) else mlp
    return 0 if part is None else linear_of(part.down_proj).weight.shape[1]


def gate_of(mlp: Any) -> Gate | None:
    """How a part gates; None where its curve is not known."""
    if _is_mixture(mlp) and _alternate(mlp.experts):
        return Gate(Curve.CLAMPED, mlp.experts.alpha, mlp.experts.limit)
    return _GATES.get(curve_of(mlp))


def curve_of(mlp: Any) -> str:
    """What the gate of a part is bent by: the name of a class."""
    mlp = mlp.experts if _is_mixture(mlp) else mlp
    return type(mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn).__name__


def products_of(layer: Any) -> Iterator[nn.Module]:
    """Those of this part that are layers, among them those of an expert that all rows take."""
    for part in (layer.mlp, _shared(layer.mlp), getattr(layer, "router", None)):
        yield from (getattr(part, name) for name in _PRODUCTS if hasattr(part, name))


def linear_of(layer: nn.Module) -> Linear:
    """The map that a layer is, a plain one."""
    found = linear_weights(layer)
    assert found is not None, "not a plain one"
    return Linear(*found)


def _mixture_of(layer: Any) -> Any:
    """What has the experts of a layer: itself, where they stand beside its plain part; None where
    it has none."""
    if _stands_beside(layer):
        return layer
    return layer.mlp if _is_mixture(layer.mlp) else None


def _is_mixture(mlp: Any) -> bool:
    """Whether a part is experts of which a row takes some."""
    return type(mlp).__name__ in _MIXTURES


def _mlp(mlp: Any) -> Mlp:
    if hasattr(mlp, "gate_up_proj"):
        gate_up = linear_of(mlp.gate_up_proj)
    else:
        gate_up = Linear.joined(linear_of(mlp.gate_proj), linear_of(mlp.up_proj))
    return Mlp(gate_up, linear_of(mlp.down_proj))


def _mixture(mixture: Any) -> Mixture:
    router, shared = _router(mixture), _shared(mixture)
    scores, kind = [_scores(router).data], type(router).__name__
    bias = getattr(router, "bias", None)
    if hasattr(mixture, "shared_expert_gate"):
        scores.append(linear_of(mixture.shared_expert_gate).weight.to(scores[0].dtype))
    return Mixture(
        router=Linear(torch.cat(scores), None if bias is None else bias.data),
        favours=_favours(mixture),
        experts=_experts(mixture.experts),
        shared=None if shared is None else _mlp(shared),
        chosen=_chosen(router),
        sigmoid=kind in _SIGMOID,
        summed=kind in _SUMMED or (kind != _BY_CHANCE and router.norm_topk_prob),
        scale=_scale(router),
        factors=router.per_expert_scale.data if kind == _BESIDE else None,
        norms=_norms(mixture) if kind == _BESIDE else None,
    )


def _norms(layer: Any) -> MixtureNorms:
    """Those of experts beside the plain part of a layer."""
    router = layer.router
    return MixtureNorms(
        router=router.scale.data.float() * router.scalar_root_size,
        experts=layer.pre_feedforward_layernorm_2.weight.data,
        experts_post=layer.post_feedforward_layernorm_2.weight.data,
        shared_post=layer.post_feedforward_layernorm_1.weight.data,
    )


def _scores(router: Any) -> Tensor:
    """What a router makes scores by."""
    weight: Tensor = router.proj.weight if type(router).__name__ == _BESIDE else router.weight
    return weight


def _favours(mixture: Any) -> Tensor | None:
    """What is added to scores when some are chosen; whoever has it."""
    router = _router(mixture)
    for part in (router, getattr(router, "moe_statics", None), mixture):
        found: Tensor | None = getattr(part, "e_score_correction_bias", None)
        if found is not None:
            return found.data.flatten()
    return None


def _chosen(router: Any) -> int:
    """How many experts a row takes."""
    beside = type(router).__name__ == _BESIDE
    return int(router.config.top_k_experts if beside else router.top_k)


def _groups(router: Any) -> int | None:
    """Groups of experts of which a router chooses some first; None where it does not say."""
    kind = type(router).__name__
    if kind == _BY_CHANCE and router.topk_method != "group_limited_greedy":
        return 1 if router.topk_method == "greedy" else None
    if kind == _BY_CHANCE:
        return int(router.num_group)
    return getattr(router, "num_group", None) if kind in _GROUPED else 1


def _scale(router: Any) -> float:
    """What the weights of those that a router chose are multiplied by."""
    found = (getattr(router, name, None) for name in _SCALES)
    return float(next((each for each in found if each is not None), 1))


def _experts(experts: Any) -> list[Mlp]:
    """Those to choose from."""
    weights = zip(experts.gate_up_proj.data, experts.down_proj.data, strict=True)
    if not _alternate(experts):
        return [Mlp(Linear(gate_up, None), Linear(down, None)) for gate_up, down in weights]
    biases = zip(experts.gate_up_proj_bias.data, experts.down_proj_bias.data, strict=True)
    return [
        Mlp(Linear(_apart(gate_up.T), _apart(first)), Linear(down.T.contiguous(), last))
        for (gate_up, down), (first, last) in zip(weights, biases, strict=True)
    ]


def _alternate(experts: Any) -> bool:
    return type(experts).__name__ in _ALTERNATING


def _apart(outputs: Tensor) -> Tensor:
    """Gates, and then what they gate, of outputs where these alternate."""
    whole = outputs.contiguous()  # in one piece they are parted in a third of the time
    return torch.cat((whole[::2], whole[1::2]))


def _router(mixture: Any) -> Any:
    """What chooses among experts."""
    return mixture.router if hasattr(mixture, "router") else mixture.gate


def _is_plain(weight: Any, dtype: torch.dtype) -> bool:
    return weight is not None and type(weight.data) is Tensor and weight.dtype == dtype


def _shared(mixture: Any) -> Any:
    """What all rows take of what has experts; None where there is nothing of the kind."""
    found = (getattr(mixture, name, None) for name in _SHARED)
    return next((each for each in found if each is not None), None)
