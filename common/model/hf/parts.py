"""What a model of Llama's shape is made of, taken out of that of `transformers` layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from common.errors import ModelError
from common.model.facts import Facts
from common.model.hf import latents, pictures
from common.model.hf.feed_forward import (
    feed_forward_of,
    gate_of,
    has_experts,
    inner_of,
    linear_of,
)
from common.model.hf.layers import bring
from common.model.hf.per_layer import per_layer_embeddings, per_layer_input
from common.model.hf.shape import (
    LAYERS,
    added_part,
    body_of,
    divisor,
    head_size_of,
    head_softcap_of,
    softcap_of,
)
from common.model.kv_cache import LayerShape
from common.model.llama import (
    Growth,
    Latents,
    Linear,
    Llama,
    LlamaLayer,
)
from common.model.room import give_back
from common.model.rotary import Rotary

_SEE_ALIKE = {
    "Ministral3Attention",
    "MistralAttention",
    "MixtralAttention",
    "Phi3Attention",
    "SmolLM3Attention",
}
"""Attention classes whose layers have the window of the configuration, where they have one."""

_NEIGHBOURS = {
    "Ernie4_5Attention",
    "Ernie4_5_MoeAttention",
    "Glm4Attention",
    "GlmAttention",
    "HeliumAttention",
}
"""Attention classes whose rotary embeddings turn numbers that stand side by side."""

_GROWTH = "llama_4_scaling_beta", "original_max_position_embeddings"
"""Settings that say how queries grow."""

_GEMMA4 = {"Gemma4TextAttention", "Gemma4UnifiedTextAttention"}
"""Gemma 4's attention, which norms values, too."""

_ONE_MORE = {"Gemma2RMSNorm", "Gemma3RMSNorm", "GemmaRMSNorm", "VaultGemmaRMSNorm"}
"""Norms that multiply by their weight and 1."""


class _Sizes(NamedTuple):
    """Of a layer."""

    heads: int
    kv_heads: int
    head: int
    order: Tensor | None  # see `_order`; None for the one they are in

    @classmethod
    def of(cls, attention: Any, turned: int) -> _Sizes:
        """Those of one, of whose heads so many numbers are turned."""
        heads = attention.config.num_attention_heads
        kv_heads = heads // attention.num_key_value_groups
        return cls(heads, kv_heads, head_size_of(attention), _order(attention, turned))


def llama_of(model: Any, facts: Facts, *, keyless: bool = False) -> Llama:
    """A model's parts.

    Args:
        model: Of `transformers`, of Llama's shape; its layers are taken out as they are given away,
            to where its embeddings are.
        facts: What is known of it.
        keyless: Whether all of its layers see keys and values of another model.
    """
    inner = body_of(model)
    layers, embed = inner.layers, inner.embed_tokens
    attention, part = layers[0].self_attn, added_part(layers[0])
    gate = gate_of(layers[0].mlp)
    assert gate is not None, "which is not of Llama's shape"
    device, latent = embed.weight.device, latents.is_latent(attention)
    if hasattr(embed, "embed_scale"):  # rounded to the type of what it multiplies
        scale = float(embed.embed_scale.to(facts.dtype))
    else:
        scale = float(getattr(inner, "embedding_multiplier", 1))
    used = [_angles_of(each.self_attn) for each in layers]
    kinds = list(dict.fromkeys(used))
    angles = [_angles(inner.rotary_emb, kind) for kind in kinds]
    rotaries = list(map(kinds.index, used))
    sizes = [
        _Sizes.of(layer.self_attn, 2 * len(angles[rotary][0]))
        for layer, rotary in zip(layers, rotaries, strict=True)
    ]
    assert len({each.heads for each in sizes}) == 1, "all layers have as many"
    by_kind = zip(rotaries, (each.head for each in sizes), strict=True)
    assert len(set(by_kind)) == len(kinds), "layers that are turned alike have heads of one size"
    return Llama(
        facts=facts,
        heads=sizes[0].heads,
        shapes=[LayerShape(each.kv_heads, each.head, each.head) for each in sizes],
        inner=max(inner_of(layer.mlp) for layer in layers),
        has_experts=any(map(has_experts, layers)),
        has_sinks=any(hasattr(layer.self_attn, "sinks") for layer in layers),
        seen_of={} if keyless else _seen_of(layers),
        latents=latents.sizes_of(attention) if latent else None,
        whole_norms=_norm_size(attention) > sizes[0].head,
        norms_values=type(attention).__name__ in _GEMMA4,
        gate=gate,
        depth=len(layers),
        scale=attention.scaling,
        epsilon=attention.config.rms_norm_eps / part**2,
        rotaries=[
            Rotary.of_some(*each, sizes[rotaries.index(kind)].head).to(device)
            for kind, each in enumerate(angles)
        ],
        growth=_growth(attention),
        softcap=softcap_of(attention),
        embeddings=embed.weight.data,
        read_as=pictures.read_as(model, device),
        embedding_scale=scale / part,
        per_layer_embeddings=per_layer_embeddings(inner, facts.dtype),
        feature_scale=part,
        norm=_weight(bring(inner.norm, device)),
        head=linear_of(model.lm_head),
        head_scale=1 / divisor(model),
        head_softcap=head_softcap_of(model),
        layers=_taken(layers, rotaries, sizes, device),
    )


def _taken(
    layers: Any, rotaries: Sequence[int], sizes: Sequence[_Sizes], device: torch.device
) -> Iterator[LlamaLayer]:
    """Layers, each taken out of the model."""
    for index, (rotary, each) in enumerate(zip(rotaries, sizes, strict=True)):
        scale = float(getattr(layers[index], "layer_scalar", 1))  # while that is the host's
        yield _layer(bring(_out_of(layers, index), device), rotary, each, scale)
        give_back()


def _out_of(layers: Any, index: int) -> nn.Module:
    layer: nn.Module = layers[index]
    layers[index] = nn.Identity()
    return layer


def _layer(layer: Any, rotary: int, sizes: _Sizes, scale: float) -> LlamaLayer:
    attention = layer.self_attn
    made_of, q, k, v, o = _heads(attention, sizes)
    names = LAYERS[type(layer).__name__]
    norms = [None if name is None else _weight(getattr(layer, name)) for name in names]
    attention_norm, attention_post_norm, mlp_norm, mlp_post_norm = norms
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    return LlamaLayer(
        latents=made_of,
        q=_turned(q, sizes),
        k=_turned(k, sizes),
        v=v,
        o=o,
        mlp=feed_forward_of(layer),
        attention_norm=attention_norm,
        attention_post_norm=attention_post_norm,
        mlp_norm=mlp_norm,
        mlp_post_norm=mlp_post_norm,
        q_norm=None if q_norm is None else _in_order(_weight(q_norm), sizes),
        k_norm=None if k_norm is None else _in_order(_weight(k_norm), sizes),
        sinks=attention.sinks.data if hasattr(attention, "sinks") else None,
        rotary=rotary,
        window=_window(attention),
        per_layer_input=per_layer_input(layer),
        scale=scale,
    )


def _seen_of(layers: Any) -> dict[int, int]:
    """Layers that see keys and values of an earlier one: of the last of their kind that has own."""
    found, last = {}, dict[str, int]()
    for index, attention in enumerate(layer.self_attn for layer in layers):
        if not hasattr(attention, "is_kv_shared_layer"):
            return {}
        if attention.is_kv_shared_layer:
            found[index] = last[attention.layer_type]
        else:
            last[attention.layer_type] = index
    return found


def _heads(attention: Any, sizes: _Sizes) -> tuple[Latents | None, Linear, Linear, Linear, Linear]:
    """Latents, where there are some, and what makes queries, keys, values and the output."""
    if latents.is_latent(attention):
        return latents.heads_of(attention)
    if hasattr(attention, "qkv_proj"):
        keys = sizes.kv_heads * sizes.head
        q, k, v = linear_of(attention.qkv_proj).parts((sizes.heads * sizes.head, keys, keys))
    else:
        q = linear_of(attention.q_proj)
        k, v = _keys_and_values(attention, q)
    return None, q, k, v, linear_of(attention.o_proj)


def _keys_and_values(attention: Any, q: Linear) -> tuple[Linear, Linear]:
    """What makes them; nothing where a layer sees those of another."""
    if not hasattr(attention, "k_proj"):
        none = Linear(q.weight[:0], None if q.bias is None else q.bias[:0])
        return none, none
    k = linear_of(attention.k_proj)
    return k, k if attention.v_proj is None else linear_of(attention.v_proj)


def _norm_size(attention: Any) -> int:
    """Queries that are normed together; 0 where none are."""
    norm = getattr(attention, "q_norm", None)
    return 0 if norm is None else len(norm.weight)


def _weight(norm: Any) -> Tensor:
    """What a norm multiplies by."""
    weight: Tensor = norm.weight.data
    return 1.0 + weight.float() if type(norm).__name__ in _ONE_MORE else weight


def _order(attention: Any, turned: int) -> Tensor | None:
    """The order of a head's numbers in which those half a head apart are turned together.

    Scores are the same in any order that queries and keys share.

    Args:
        attention: Of a layer.
        turned: How many of a head are turned: the first ones, but the last ones where attention is
            latent. Others may be paired as they come.
    """
    size, numbers = head_size_of(attention), torch.arange(head_size_of(attention))
    kind = type(attention).__name__
    side_by_side = kind in _NEIGHBOURS
    if latents.is_latent(attention):
        numbers = numbers.roll(turned)
        side_by_side = kind == "DeepseekV2Attention" or bool(attention.config.rope_interleave)
    if not turned or (turned == size and not side_by_side):
        return None
    first, still = numbers.split([turned, size - turned])
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
    if kind in ("Exaone4Attention", "ExaoneMoeAttention"):
        return "" if attention.sliding_window is None or attention.is_sliding else None
    if kind == "Olmo3Attention":
        return f"{attention.attention_type}_"
    if kind == "Gemma3Attention" or kind in _GEMMA4:
        return f"{attention.layer_type}_"
    if kind == "MellumAttention":
        return f"{attention.config.layer_types[attention.layer_idx]}_"
    return "" if getattr(attention, "use_rope", True) else None


def _angles(rotary: Any, kind: str | None) -> tuple[Tensor, float]:
    """Radians a position of the pairs that are turned, and what cosines and sines are multiplied
    by."""
    if kind is None:
        return torch.empty(0), 1.0
    frequencies: Tensor = getattr(rotary, f"{kind}inv_freq")
    return frequencies.float(), getattr(rotary, f"{kind}attention_scaling")


def _growth(attention: Any) -> Growth | None:
    """By how much queries grow with their position."""
    if type(attention).__name__ != "Ministral3Attention":
        return None
    part, step = (attention.config.rope_parameters.get(name) for name in _GROWTH)
    if not isinstance(part, (int, float)) or not isinstance(step, int) or step < 1:
        names = " and ".join(_GROWTH)
        raise ModelError(
            f"rope_parameters: {names} must be a number and a positive one, not {part} and {step}"
        )
    return Growth(part, step)


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
