"""Per-layer embeddings of `transformers` models, as Gemma 4's small ones have them."""

from __future__ import annotations

from typing import Any

import torch

from common.model.hf.feed_forward import linear_of
from common.model.hf.layers import bring
from common.model.llama import PerLayerEmbeddings, PerLayerInput


def has_per_layer_input(layer: Any) -> bool:
    """Whether a layer reads embeddings of its own."""
    return bool(getattr(layer, "hidden_size_per_layer_input", 0))


def per_layer_embeddings(inner: Any, dtype: torch.dtype) -> PerLayerEmbeddings | None:
    """What a model's layers read beside rows.

    The norm there is of a product that is scaled, and its sum with a token's is scaled again: one
    scale is in what is added to the mean square, the other in what is added up.

    Args:
        inner: What the model has beside its output layer; its tables are brought by now.
        dtype: Of its weights.
    """
    if not has_per_layer_input(inner.layers[0]):
        return None
    embed, norm = inner.embed_tokens_per_layer, inner.per_layer_projection_norm
    device, part = inner.embed_tokens.weight.device, inner.per_layer_input_scale
    for module in (norm, inner.per_layer_model_projection):
        bring(module, device)
    return PerLayerEmbeddings(
        embeddings=embed.weight.data,
        scale=float(embed.embed_scale.to(dtype)) * part,
        product=linear_of(inner.per_layer_model_projection),
        norm=norm.weight.data.float() * part,
        epsilon=norm.eps / inner.per_layer_model_projection_scale**2,
    )


def per_layer_input(layer: Any) -> PerLayerInput | None:
    """How a layer reads its own of them."""
    if not has_per_layer_input(layer):
        return None
    gate, product = linear_of(layer.per_layer_input_gate), linear_of(layer.per_layer_projection)
    return PerLayerInput(gate, product, layer.post_per_layer_input_norm.weight.data)
