"""Which models of `transformers` are of Llama's shape, and what those are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.model.facts import Facts
from common.model.llama import Linear, Llama, LlamaLayer
from common.model.rotary import Rotary

_LAYERS = {
    "CwmDecoderLayer",
    "Ernie4_5DecoderLayer",
    "GlmDecoderLayer",
    "HeliumDecoderLayer",
    "LlamaDecoderLayer",
    "MinistralDecoderLayer",
    "MistralDecoderLayer",
    "Phi3DecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
    "SeedOssDecoderLayer",
    "SmolLM3DecoderLayer",
}
"""Layer classes whose arithmetic is that of `Llama`."""

_SWISH = {"SiLU", "SiLUActivation"}

_SEE_ALIKE = {"MistralAttention", "Phi3Attention"}
"""Attention classes of which all layers have the window of the configuration."""

_NEIGHBOURS = {"Ernie4_5Attention", "GlmAttention", "HeliumAttention"}
"""Attention classes whose rotary embeddings turn numbers that stand side by side."""


class _Sizes(NamedTuple):
    """Of a layer."""

    heads: int
    kv_heads: int
    head: int
    inner: int
    order: Tensor | None  # see `_order`; None for the one they are in


def llama_of(model: Any, facts: Facts) -> Llama | None:
    """A model's parts, if it is of Llama's shape.

    Args:
        model: Of `transformers`; its layers are taken out as they are given away.
        facts: What is known of it.
    """
    inner = getattr(model, "model", None)
    layers = getattr(inner, "layers", ())
    if inner is None or not layers or not all(map(_is_llama, layers)):
        return None
    attention, rotary = layers[0].self_attn, inner.rotary_emb
    config, frequencies = attention.config, rotary.inv_freq.float()
    if attention.head_dim % 2:
        return None
    sizes = _Sizes(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head=attention.head_dim,
        inner=config.intermediate_size,
        order=_order(attention, 2 * len(frequencies)),
    )
    own = Rotary.of_some(frequencies, rotary.attention_scaling, sizes.head)
    still = Rotary.of_some(frequencies[:0], 1.0, sizes.head)
    return Llama(
        facts=facts,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_size=sizes.head,
        inner=sizes.inner,
        depth=len(layers),
        scale=attention.scaling,
        epsilon=inner.norm.variance_epsilon,
        rotaries=(own,) if all(map(_turns, layers)) else (own, still),
        embeddings=inner.embed_tokens.weight.data,
        norm=inner.norm.weight.data,
        head=_linear(model.lm_head),
        layers=_taken(layers, sizes),
    )


def _is_llama(layer: Any) -> bool:
    """Whether a layer is of a class known to compute what one of `Llama` does."""
    if type(layer).__name__ not in _LAYERS:
        return False
    curve = getattr(layer.mlp, "act_fn", None) or layer.mlp.activation_fn
    return type(curve).__name__ in _SWISH


def _taken(layers: Any, sizes: _Sizes) -> Iterator[LlamaLayer]:
    """Layers, each taken out of the model."""
    for index, layer in enumerate(layers):
        layers[index] = nn.Identity()
        yield _layer(layer, sizes)


def _layer(layer: Any, sizes: _Sizes) -> LlamaLayer:
    attention, mlp = layer.self_attn, layer.mlp
    q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    if hasattr(attention, "qkv_proj"):
        keys = sizes.kv_heads * sizes.head
        q, k, v = _parts(attention.qkv_proj, (sizes.heads * sizes.head, keys, keys))
    else:
        q, k, v = map(_linear, (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(mlp, "gate_up_proj"):
        gate, up = _parts(mlp.gate_up_proj, (sizes.inner, sizes.inner))
    else:
        gate, up = _linear(mlp.gate_proj), _linear(mlp.up_proj)
    return LlamaLayer(
        q=_turned(q, sizes),
        k=_turned(k, sizes),
        v=v,
        o=_linear(attention.o_proj),
        gate=gate,
        up=up,
        down=_linear(mlp.down_proj),
        attention_norm=layer.input_layernorm.weight.data,
        mlp_norm=layer.post_attention_layernorm.weight.data,
        q_norm=None if q_norm is None else _in_order(q_norm.weight.data, sizes),
        k_norm=None if k_norm is None else _in_order(k_norm.weight.data, sizes),
        rotary=0 if _turns(layer) else 1,
        window=_window(attention),
    )


def _linear(layer: nn.Linear) -> Linear:
    return Linear(layer.weight.data, None if layer.bias is None else layer.bias.data)


def _parts(layer: nn.Linear, outputs: Sequence[int]) -> list[Linear]:
    """Several maps that are one layer, by how many outputs each has."""
    weight, bias = _linear(layer)
    weights = weight.split(list(outputs))
    biases = [None] * len(weights) if bias is None else bias.split(list(outputs))
    return [Linear(*part) for part in zip(weights, biases, strict=True)]


def _order(attention: Any, turned: int) -> Tensor | None:
    """The order of a head's numbers in which those half a head apart are turned together.

    Scores are the same in any order that queries and keys share.

    Args:
        attention: Of a layer.
        turned: How many of a head are turned: the first ones. Others may be paired as they come.
    """
    size: int = attention.head_dim
    side_by_side = type(attention).__name__ in _NEIGHBOURS
    if turned == size and not side_by_side:
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


def _turns(layer: Any) -> bool:
    """Whether a layer's queries and keys are turned at all."""
    return bool(getattr(layer.self_attn, "use_rope", True))


def _window(attention: Any) -> int | None:
    """Keys that a row of a layer sees, itself included; None where it sees all."""
    of = attention.config if type(attention).__name__ in _SEE_ALIKE else attention
    size: int | None = getattr(of, "sliding_window", None)
    return size
