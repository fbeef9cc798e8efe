"""A model of Llama's shape as the compiled decoder reads it."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import pointer
from typing import Any

import torch
from torch import Tensor

from common.model.kv_cache import LayerShape
from common.model.llama import Linear, Llama, LlamaLayer, Mixture, Mlp, PerLayerEmbeddings
from common.model.native.library import Decoder
from common.model.native.product import PackedMatrix
from common.model.native.structures import Experts, Gate, Layer, MixtureNorms, Model, Product

_NO_SINK = -1e30
"""As good as none, and no infinity, from which another cannot be taken."""


class Weights:
    """The structures of a model, and what they point to but for its cache.

    Args:
        model: What it is made of; its layers are taken.
        decoder: For which they are packed.
        quantize: Whether to round the weights of products to int8.
    """

    def __init__(self, model: Llama, decoder: Decoder, *, quantize: bool) -> None:
        self._decoder, self._quantize, self._dtype = decoder, quantize, model.facts.dtype
        self._kept: list[Tensor] = []
        self._matrices: list[PackedMatrix] = []
        self._turns: list[int] = []
        self._scale = 1.0 if model.softcap else model.scale
        # As a pass reads them: beyond the end of one matrix the next is fetched.
        tables = model.per_layer_embeddings
        per_layer = {} if tables is None else self._per_layer(tables)
        shares = (layer in model.seen_of for layer in range(model.depth))
        made = map(self._layer, model.layers, model.shapes, shares)  # which keeps none of them
        self._layers = (Layer * model.depth)(*made)
        self.model = Model(
            hidden=model.hidden,
            heads=model.heads,
            inner=model.inner,
            gate=Gate(*model.gate),
            whole_norms=model.whole_norms,
            norms_values=model.norms_values,
            layers=model.depth,
            vocab=len(model.embeddings),
            epsilon=model.epsilon,
            scale=model.scale,
            softcap=model.softcap or 0.0,
            head_softcap=model.head_softcap or 0.0,
            embeddings=self._keep(model.embeddings),
            read_as=None if model.read_as is None else self._keep(model.read_as),
            embedding_scale=model.embedding_scale,
            feature_scale=model.feature_scale,
            norm=self._norm(model.norm),
            head=self._product(_scaled(model.head, model.head_scale)),
            layer=self._layers,
            **per_layer,
        )
        """The whole model."""

    @property
    def layers(self) -> Iterator[tuple[Layer, int]]:
        """Its layers, and which of the model's rotary embeddings turns the heads of each."""
        return zip(self._layers, self._turns, strict=True)

    def _layer(self, layer: LlamaLayer, shape: LayerShape, shares: bool) -> Layer:
        self._turns.append(layer.rotary)
        found = Layer(
            **self._heads(layer),
            out=self._product(layer.o),
            attention_norm=self._norm(layer.attention_norm),
            attention_post_norm=self._norm(layer.attention_post_norm),
            mlp_norm=self._norm(layer.mlp_norm),
            mlp_post_norm=self._norm(layer.mlp_post_norm),
            q_norm=self._norm(layer.q_norm),
            k_norm=self._norm(layer.k_norm),
            sinks=self._sinks(layer.sinks),
            kv_heads=shape.kv_heads,
            size=shape.key_size,
            shares=shares,
            window=layer.window or 0,
            scale=layer.scale,
        )
        plain = layer.mlp if isinstance(layer.mlp, Mlp) else layer.mlp.shared
        if not isinstance(layer.mlp, Mlp):
            together = plain is not None and layer.mlp_post_norm is not None
            assert together == (layer.mlp.norms is not None), "they have norms of their own then"
            found.experts = pointer(self._experts(layer.mlp))
        if plain is not None:
            found.gate_up, found.down = self._product(plain.gate_up), self._product(plain.down)
        if layer.per_layer_input is not None:
            gate, product, norm = layer.per_layer_input
            found.per_layer_gate, found.per_layer_out = self._product(gate), self._product(product)
            found.per_layer_post_norm = self._norm(norm)
        return found

    def _per_layer(self, tables: PerLayerEmbeddings) -> dict[str, Any]:
        """What layers read beside rows."""
        return {
            "per_layer_size": len(tables.norm),
            "per_layer_embeddings": self._keep(tables.embeddings),
            "per_layer_product": self._product(tables.product),
            "per_layer_norm": self._norm(tables.norm),
            "per_layer_scale": tables.scale,
            "per_layer_epsilon": tables.epsilon,
        }

    def _heads(self, layer: LlamaLayer) -> dict[str, Any]:
        """What a layer makes queries, keys and values by."""
        latents = layer.latents
        if latents is None:
            return {"qkv": self._product(layer.q, layer.k, layer.v)}
        return {
            "latent": self._product(latents.product),
            "qkv": self._product(layer.q),
            "kv": self._product(layer.k, layer.v, rounds=False),  # it copies a part of its inputs
            "q_latent_norm": self._norm(latents.q_norm),
            "kv_latent_norm": self._norm(latents.kv_norm),
            "q_latent": 0 if latents.q_norm is None else len(latents.q_norm),
            "kv_normed": len(latents.kv_norm),
            "latent_epsilon": latents.epsilon,
        }

    def _experts(self, mixture: Mixture) -> Experts:
        scores = _parts_of(mixture.router, self._dtype)
        router = self._product(scores, rounds=False)
        pairs = [
            (self._product(each.gate_up), self._product(each.down)) for each in mixture.experts
        ]
        gate_ups, downs = zip(*pairs, strict=True)
        products = Product * len(pairs)
        return Experts(
            router=router,
            router_parts=len(scores.weight) // len(mixture.router.weight),
            favours=self._norm(mixture.favours),
            gate_up=products(*gate_ups),
            down=products(*downs),
            count=len(pairs),
            chosen=mixture.chosen,
            sigmoid=mixture.sigmoid,
            summed=mixture.summed,
            scale=mixture.scale,
            factors=self._norm(mixture.factors),
            norms=MixtureNorms(*map(self._norm, mixture.norms or ())),
        )

    def _product(self, *parts: Linear, rounds: bool = True) -> Product:
        """Maps of one input as one matrix, whose weights are rounded where all are."""
        weight, bias = Linear.joined(*parts)
        quantize = rounds and self._quantize
        self._matrices.append(PackedMatrix(weight, bias, self._decoder, quantize=quantize))
        return self._matrices[-1].product

    def _norm(self, weight: Tensor | None) -> int | None:
        """The address of a norm's weight, if there is one."""
        return None if weight is None else self._keep(weight.float())

    def _sinks(self, sinks: Tensor | None) -> int | None:
        """The address of sinks as the decoder reads them, if there are any."""
        if sinks is None:
            return None
        return self._keep((sinks.float() / self._scale).clamp_min_(_NO_SINK))

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor that stays."""
        kept = tensor.contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def _scaled(linear: Linear, scale: float) -> Linear:
    """Times a power of two, which rounds nothing."""
    weight, bias = linear
    if scale == 1:
        return linear
    return Linear(weight * scale, None if bias is None else bias * scale)


def _parts_of(linear: Linear, dtype: torch.dtype) -> Linear:
    """A map of a type whose outputs, one part of them after another, add up to another's: a number
    of 32 bits is the sum of three of bfloat16, or of fewer."""
    rest, parts = linear.weight.float(), list[Tensor]()
    while not parts or (len(parts) < 3 and bool(rest.any())):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].float()
    bias = linear.bias
    if bias is not None:
        bias = torch.cat((bias, bias.new_zeros(bias.numel() * (len(parts) - 1))))
    return Linear(torch.cat(parts), bias)
