"""Which models of `transformers` are of Llama's shape, and what those are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.model.facts import Facts
from common.model.hf.feed_forward import (
    curve_of,
    feed_forward_of,
    inner_of,
    is_mixture,
    knows,
    linear_of,
    products_of,
)
from common.model.hf.layers import bring, linear_weights
from common.model.llama import Linear, Llama, LlamaLayer
from common.model.room import give_back
from common.model.rotary import Rotary


class _Norms(NamedTuple):
    """What a layer calls its norms; None where it has none."""

    attention: str | None = "input_layernorm"
    attention_post: str | None = None
    mlp: str | None = "post_attention_layernorm"
    mlp_post: str | None = None


_BEHIND = _Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")

_LAYERS = {
    "CwmDecoderLayer": _Norms(),
    "Dots1DecoderLayer": _Norms(),
    "Ernie4_5DecoderLayer": _Norms(),
    "Exaone4DecoderLayer": _BEHIND,
    "FlexOlmoDecoderLayer": _BEHIND,
    "Gemma3DecoderLayer": _Norms(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    "Glm4DecoderLayer": _Norms(
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    "Glm4MoeDecoderLayer": _Norms(),
    "GlmDecoderLayer": _Norms(),
    "GraniteDecoderLayer": _Norms(),
    "HeliumDecoderLayer": _Norms(),
    "LlamaDecoderLayer": _Norms(),
    "MiniMaxM2DecoderLayer": _Norms(),
    "MinistralDecoderLayer": _Norms(),
    "MistralDecoderLayer": _Norms(),
    "MixtralDecoderLayer": _Norms(),
    "Olmo2DecoderLayer": _BEHIND,
    "Olmo3DecoderLayer": _BEHIND,
    "OlmoeDecoderLayer": _Norms(),
    "Phi3DecoderLayer": _Norms(),
    "Qwen2DecoderLayer": _Norms(),
    "Qwen2MoeDecoderLayer": _Norms(),
    "Qwen3DecoderLayer": _Norms(),
    "Qwen3MoeDecoderLayer": _Norms(),
    "SeedOssDecoderLayer": _Norms(),
    "SmolLM3DecoderLayer": _Norms(),
}
"""Layer classes whose arithmetic is that of `Llama`."""

_SILU, _GELU = {"SiLU", "SiLUActivation"}, {"GELUTanh"}
"""Classes of a gate's curve."""

_SEE_ALIKE = {"MistralAttention", "MixtralAttention", "Phi3Attention", "SmolLM3Attention"}
"""Attention classes whose layers have the window of the configuration, where they have one."""

_NEIGHBOURS = {"Ernie4_5Attention", "Glm4Attention", "GlmAttention", "HeliumAttention"}
"""Attention classes whose rotary embeddings turn numbers that stand side by side."""

_PRODUCTS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")
"""What attention calls the products that it may have."""

_ONE_MORE = {"Gemma3RMSNorm"}
"""Norms that multiply by their weight and 1."""


class _Sizes(NamedTuple):
    """Of a layer."""

    heads: int
    kv_heads: int
    head: int
    order: Tensor | None  # see `_order`; None for the one they are in
    device: torch.device


def lacks(model: Any, facts: Facts) -> str:
    """Why a model of `transformers` is not of Llama's shape; nothing where it is.

    Args:
        model: It.
        facts: What is known of it.
    """
    layers = getattr(_inner(model), "layers", ())
    if not layers or not all(type(each).__name__ in _LAYERS for each in layers):
        return f"{facts.kind} is not of Llama's shape"
    for product in (model.lm_head, *(each for layer in layers for each in _products(layer))):
        if problem := _odd(product, facts.dtype):
            return problem
    if not all(knows(layer.mlp, facts.dtype) for layer in layers):
        return "its experts, or how they are chosen, are not known"
    attention = layers[0].self_attn
    if getattr(attention.config, "clip_qkv", None) is not None:
        return "what its attention reads is kept within bounds (clip_qkv)"
    curve = type(curve_of(layers[0].mlp)).__name__
    if curve not in _SILU | _GELU:
        return f"its gates are bent by {curve}"
    if attention.head_dim % 2:
        return f"heads of {attention.head_dim} numbers, which is odd"
    return _unscaled(layers[0], facts.dtype)


def _unscaled(layer: Any, dtype: torch.dtype) -> str:
    """Why rows or logits of a model are not scaled as it wants them; nothing where they are."""
    config, part = layer.self_attn.config, _added_part(layer)
    if getattr(config, "final_logit_softcapping", None) is not None:
        return "its logits are capped (final_logit_softcapping)"
    if math.frexp(divisor := _divisor(config))[0] != 0.5:  # a power of two rounds nothing
        return f"its logits are divided by {divisor:g}, no power of two"
    if not part > 0:
        return f"residual_multiplier is {part:g}, not above 0"
    if part != 1 and dtype == torch.float16:
        return "residual_multiplier makes rows here that are too large for float16"
    return ""


def llama_of(model: Any, facts: Facts) -> Llama:
    """A model's parts.

    Args:
        model: Of `transformers`, of Llama's shape; its layers are taken out as they are given away,
            to where its embeddings are.
        facts: What is known of it.
    """
    inner = _inner(model)
    layers, embed = inner.layers, inner.embed_tokens
    attention, part = layers[0].self_attn, _added_part(layers[0])
    config = attention.config
    if hasattr(embed, "embed_scale"):  # rounded to the type of what it multiplies
        scale = float(embed.embed_scale.to(facts.dtype))
    else:
        scale = float(getattr(inner, "embedding_multiplier", 1))
    used = [_angles_of(each.self_attn) for each in layers]
    kinds = list(dict.fromkeys(used))
    angles = [_angles(inner.rotary_emb, kind) for kind in kinds]
    turned = max(len(frequencies) for frequencies, _ in angles)
    sizes = _Sizes(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head=attention.head_dim,
        order=_order(attention, 2 * turned),
        device=embed.weight.device,
    )
    return Llama(
        facts=facts,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_size=sizes.head,
        inner=max(inner_of(layer.mlp) for layer in layers),
        has_experts=any(is_mixture(layer.mlp) for layer in layers),
        whole_norms=_norm_size(attention) > attention.head_dim,
        gelu=type(curve_of(layers[0].mlp)).__name__ in _GELU,
        depth=len(layers),
        scale=attention.scaling,
        epsilon=config.rms_norm_eps / part**2,
        rotaries=tuple(
            Rotary.of_some(*each, sizes.head).to(embed.weight.device) for each in angles
        ),
        embeddings=embed.weight.data,
        embedding_scale=scale / part,
        feature_scale=part,
        norm=_weight(bring(inner.norm, embed.weight.device)),
        head=linear_of(model.lm_head),
        head_scale=1 / _divisor(config),
        layers=_taken(layers, list(map(kinds.index, used)), sizes),
    )


def _taken(layers: Any, rotaries: Sequence[int], sizes: _Sizes) -> Iterator[LlamaLayer]:
    """Layers, each taken out of the model."""
    for index, rotary in enumerate(rotaries):
        yield _layer(bring(_out_of(layers, index), sizes.device), rotary, sizes)
        give_back()


def _out_of(layers: Any, index: int) -> nn.Module:
    layer: nn.Module = layers[index]
    layers[index] = nn.Identity()
    return layer


def _layer(layer: Any, rotary: int, sizes: _Sizes) -> LlamaLayer:
    attention = layer.self_attn
    if hasattr(attention, "qkv_proj"):
        keys = sizes.kv_heads * sizes.head
        q, k, v = linear_of(attention.qkv_proj).parts((sizes.heads * sizes.head, keys, keys))
    else:
        q, k, v = map(linear_of, (attention.q_proj, attention.k_proj, attention.v_proj))
    names = _LAYERS[type(layer).__name__]
    norms = [None if name is None else _weight(getattr(layer, name)) for name in names]
    attention_norm, attention_post_norm, mlp_norm, mlp_post_norm = norms
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return LlamaLayer(
        q=_turned(q, sizes),
        k=_turned(k, sizes),
        v=v,
        o=linear_of(attention.o_proj),
        mlp=feed_forward_of(layer.mlp),
        attention_norm=attention_norm,
        attention_post_norm=attention_post_norm,
        mlp_norm=mlp_norm,
        mlp_post_norm=mlp_post_norm,
        q_norm=None if q_norm is None else _in_order(_weight(q_norm), sizes),
        k_norm=None if k_norm is None else _in_order(_weight(k_norm), sizes),
        rotary=rotary,
        window=_window(attention),
    )


def _inner(model: Any) -> Any:
    """What a model has beside its output layer; None where it is called otherwise."""
    inner = getattr(model, "model", None)
    return getattr(inner, "language_model", inner)  # of one that sees pictures, too


def _added_part(layer: Any) -> float:
    """The part that rows grow by of what a layer adds.

    Here they grow by all of it, and are larger by that factor from the start: norms undo it, once
    what they add to the mean square is, too.
    """
    return float(getattr(layer, "residual_multiplier", 1))


def _divisor(config: Any) -> float:
    """What logits are divided by."""
    return float(getattr(config, "logits_scaling", 1))


def _norm_size(attention: Any) -> int:
    """Queries that are normed together; 0 where none are."""
    norm = getattr(attention, "q_norm", None)
    return 0 if norm is None else len(norm.weight)


def _weight(norm: Any) -> Tensor:
    """What a norm multiplies by."""
    weight: Tensor = norm.weight.data
    return 1.0 + weight.float() if type(norm).__name__ in _ONE_MORE else weight


def _products(layer: Any) -> Iterator[nn.Module]:
    """Those of a layer."""
    attention = layer.self_attn
    yield from (getattr(attention, name) for name in _PRODUCTS if hasattr(attention, name))
    yield from products_of(layer.mlp)


def _odd(layer: nn.Module, dtype: torch.dtype) -> str:
    """Why a layer does not multiply by weights as they are; nothing where it does."""
    found = linear_weights(layer)
    if found is None:
        return f"layers of class {type(layer).__name__} do more than multiply by their weights"
    kind = found[0].dtype
    return "" if kind == dtype else f"some of its weights are {_name(kind)}, others {_name(dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _order(attention: Any, turned: int) -> Tensor | None:
    """The order of a head's numbers in which those half a head apart are turned together.

    Scores are the same in any order that queries and keys share.

    Args:
        attention: Of a layer.
        turned: How many of a head are turned: the first ones. Others may be paired as they come.
    """
    size: int = attention.head_dim
    side_by_side = type(attention).__name__ in _NEIGHBOURS
    if not turned or (turned == size and not side_by_side):
        return None
    first, still = torch.arange(size).split([turned, size - turned])
    pairs = first.view(-1, 2).T if side_by_side else first.view(2, -1)
    return torch.cat((pairs, still.view(2, -1)), dim=1).flatten()


def _turned(linear: Linear, sizes: _Sizes) -> Linear:
    """Queries or keys, in the order of `sizes`."""
    weight, bias = linear
    return Linear(_in_order(weight, sizes), None if bias is None else _in_order(bias, sizes))


def _in_order(tensor: Tensor, sizes: _Sizes) -> Tensor:
    """Numbers of whole heads, `[heads * head, …]`, in the order of `sizes`."""
    if sizes.order is None:
        return tensor
    heads = tensor.view(-1, sizes.head, *tensor.shape[1:])
    return heads[:, sizes.order.to(tensor.device)].view(tensor.shape)


def _angles_of(attention: Any) -> str | None:
    """Which angles a layer's queries and keys are turned by: how the names begin that rotary
    embeddings keep them under; None where nothing is turned."""
    kind = type(attention).__name__
    if kind == "Exaone4Attention":
        return "" if attention.sliding_window is None or attention.is_sliding else None
    if kind == "Olmo3Attention":
        return f"{attention.attention_type}_"
    if kind == "Gemma3Attention":
        return f"{attention.layer_type}_"
    return "" if getattr(attention, "use_rope", True) else None


def _angles(rotary: Any, kind: str | None) -> tuple[Tensor, float]:
    """Radians a position of the pairs that are turned, and what cosines and sines are multiplied
    by."""
    if kind is None:
        return torch.empty(0), 1.0
    frequencies: Tensor = getattr(rotary, f"{kind}inv_freq")
    return frequencies.float(), getattr(rotary, f"{kind}attention_scaling")


def _window(attention: Any) -> int | None:
    """Keys that a row of a layer sees, itself included; None where it sees all."""
    kind, config = type(attention).__name__, attention.config
    if kind == "SmolLM3Attention":  # its mask is made by the configuration alone
        slides = config.layer_types[attention.layer_idx] == "sliding_attention"
    else:
        slides = getattr(attention, "is_sliding", True)
    of = config if kind in _SEE_ALIKE else attention
    size: int | None = getattr(of, "sliding_window", None) if slides else None
    return size
