"""Which models of `transformers` are of Llama's shape, and why others are not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from common.model.facts import Facts
from common.model.hf.feed_forward import curve_of, gate_of, knows, products_of
from common.model.hf.latents import is_latent, latents_lack
from common.model.hf.layers import linear_weights
from common.model.hf.per_layer import has_per_layer_input


class _Norms(NamedTuple):
    """What a layer calls its norms; None where it has none."""

    attention: str | None = "input_layernorm"
    attention_post: str | None = None
    mlp: str | None = "post_attention_layernorm"
    mlp_post: str | None = None


_AROUND = _Norms(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_BEHIND = _Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")

LAYERS = {
    "CwmDecoderLayer": _Norms(),
    "DeepseekV2DecoderLayer": _Norms(),
    "DeepseekV3DecoderLayer": _Norms(),
    "Dots1DecoderLayer": _Norms(),
    "Ernie4_5DecoderLayer": _Norms(),
    "Ernie4_5_MoeDecoderLayer": _Norms(),
    "Exaone4DecoderLayer": _BEHIND,
    "ExaoneMoeDecoderLayer": _Norms(),
    "FlexOlmoDecoderLayer": _BEHIND,
    "Gemma2DecoderLayer": _AROUND,
    "Gemma3DecoderLayer": _AROUND,
    "Gemma4TextDecoderLayer": _AROUND,
    "Gemma4UnifiedTextDecoderLayer": _AROUND,
    "GemmaDecoderLayer": _Norms(),
    "Glm4DecoderLayer": _Norms(
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    "Glm4MoeDecoderLayer": _Norms(),
    "Glm4MoeLiteDecoderLayer": _Norms(),
    "GlmDecoderLayer": _Norms(),
    "GptOssDecoderLayer": _Norms(),
    "GraniteDecoderLayer": _Norms(),
    "HYV3DecoderLayer": _Norms(),
    "HeliumDecoderLayer": _Norms(),
    "LlamaDecoderLayer": _Norms(),
    "MellumDecoderLayer": _Norms(),
    "MiniMaxM2DecoderLayer": _Norms(),
    "Ministral3DecoderLayer": _Norms(),
    "MinistralDecoderLayer": _Norms(),
    "MistralDecoderLayer": _Norms(),
    "MixtralDecoderLayer": _Norms(),
    "Olmo2DecoderLayer": _BEHIND,
    "Olmo3DecoderLayer": _BEHIND,
    "OlmoeDecoderLayer": _Norms(),
    "Phi3DecoderLayer": _Norms(),
    "Qwen2DecoderLayer": _Norms(),
    "Qwen2MoeDecoderLayer": _Norms(),
    "Qwen2VLDecoderLayer": _Norms(),
    "Qwen2_5_VLDecoderLayer": _Norms(),
    "Qwen3DecoderLayer": _Norms(),
    "Qwen3MoeDecoderLayer": _Norms(),
    "Qwen3VLMoeTextDecoderLayer": _Norms(),
    "Qwen3VLTextDecoderLayer": _Norms(),
    "SeedOssDecoderLayer": _Norms(),
    "SmolLM3DecoderLayer": _Norms(),
    "SolarOpenDecoderLayer": _Norms(),
    "VaultGemmaDecoderLayer": _Norms(mlp="pre_feedforward_layernorm"),
    "YoutuDecoderLayer": _Norms(),
}
"""Layer classes whose arithmetic is that of `Llama`, and what each calls its norms."""

_SOFTCAPPED = {
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForCausalLM",
    "Gemma4UnifiedForConditionalGeneration",
    "VaultGemmaForCausalLM",
}
"""Classes of models that cap their logits."""

_MOST_SOFTCAP = 100
"""Published ones are 20 to 50; small numbers lose as much as a cap is large."""

_PRODUCTS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
)
"""What attention calls the products that it may have."""


def lacks(model: Any, facts: Facts) -> str:
    """Why a model of `transformers` is not of Llama's shape; nothing where it is.

    Args:
        model: It.
        facts: What is known of it.
    """
    body = body_of(model)
    layers = getattr(body, "layers", ())
    if not layers or not all(type(each).__name__ in LAYERS for each in layers):
        return f"{facts.kind} is not of Llama's shape"
    of_layers = (each for layer in layers for each in _products(layer))
    of_others = [body.per_layer_model_projection] if has_per_layer_input(layers[0]) else []
    for product in (model.lm_head, *of_others, *of_layers):
        if problem := _odd(product, facts.dtype):
            return problem
    if not all(knows(layer, facts.dtype) for layer in layers):
        return "its experts, or how they are chosen, are not known"
    attentions = [layer.self_attn for layer in layers]
    attention = attentions[0]
    if getattr(attention.config, "clip_qkv", None) is not None:
        return "what its attention reads is kept within bounds (clip_qkv)"
    if gate_of(layers[0].mlp) is None:
        return f"its gates are bent by {curve_of(layers[0].mlp)}"
    if is_latent(attention):
        if problem := latents_lack(attention, body.rotary_emb):
            return problem
    elif odd := [each for each in map(head_size_of, attentions) if each % 2]:
        return f"heads of {odd[0]} numbers, which is odd"
    per_layer = body.embed_tokens_per_layer.weight if has_per_layer_input(layers[0]) else None
    if per_layer is not None and len(per_layer) < facts.vocab_size:
        return "its layers have no embeddings for some of its tokens"
    return _unscaled(model, layers[0], facts.dtype)


def _unscaled(model: Any, layer: Any, dtype: torch.dtype) -> str:
    """Why rows or logits cannot be scaled here as a model has them; nothing where they can."""
    part = added_part(layer)
    for cap in (softcap_of(layer.self_attn), head_softcap_of(model)):
        if cap is not None and not 0 < cap <= _MOST_SOFTCAP:
            return f"its scores or logits are kept within {cap:g}, not 0 to {_MOST_SOFTCAP}"
    if math.frexp(by := divisor(model))[0] != 0.5:  # a power of two rounds nothing
        return f"its logits are divided by {by:g}, no power of two"
    if not part > 0:
        return f"residual_multiplier is {part:g}, not above 0"
    if part != 1 and dtype == torch.float16:
        return "residual_multiplier makes rows here that are too large for float16"
    return ""


def _products(layer: Any) -> Iterator[nn.Module]:
    """Those of a layer."""
    attention = layer.self_attn
    found = (getattr(attention, name, None) for name in _PRODUCTS)
    yield from (each for each in found if each is not None)
    yield from products_of(layer)
    if has_per_layer_input(layer):
        yield from (layer.per_layer_input_gate, layer.per_layer_projection)


def _odd(layer: nn.Module, dtype: torch.dtype) -> str:
    """Why a layer does not multiply by weights as they are; nothing where it does."""
    found = linear_weights(layer)
    if found is None:
        return f"layers of class {type(layer).__name__} do more than multiply by their weights"
    kind = found[0].dtype
    return "" if kind == dtype else f"some of its weights are {_name(kind)}, others {_name(dtype)}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def body_of(model: Any) -> Any:
    """What a model has beside its output layer; None where it is called otherwise."""
    inner = getattr(model, "model", None)
    return getattr(inner, "language_model", inner)  # of one that sees pictures, too


def head_size_of(attention: Any) -> int:
    """Numbers of a query and of a key."""
    size: int = attention.qk_head_dim if is_latent(attention) else attention.head_dim
    return size


def added_part(layer: Any) -> float:
    """The part that rows grow by of what a layer adds.

    Here they grow by all of it, and are larger by that factor from the start: norms undo it, once
    what they add to the mean square is, too.
    """
    return float(getattr(layer, "residual_multiplier", 1))


def softcap_of(attention: Any) -> float | None:
    """What scores of a layer are kept within."""
    capped = type(attention).__name__ in ("Gemma2Attention", "VaultGemmaAttention")
    found: float | None = attention.attn_logit_softcapping if capped else None
    return found


def head_softcap_of(model: Any) -> float | None:
    """What logits are kept within."""
    capped = type(model).__name__ in _SOFTCAPPED
    found: float | None = model.config.get_text_config().final_logit_softcapping if capped else None
    return found


def divisor(model: Any) -> float:
    """What logits are divided by: as the model says that has the output layer."""
    return float(getattr(model.config, "logits_scaling", 1))
