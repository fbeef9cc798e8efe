"""What a decoder of Llama's shape is made of, wherever it comes from.

So are Mistral, Qwen2, Qwen3 and others: root-mean-square norms before or behind each part, rotary
embeddings that turn numbers half a head apart, grouped queries, a gated SiLU or GELU, and here and
there a bias, a norm of queries and keys, a sliding window or experts of which a row takes some.
What runs such a model (`native`, `fused`, `cuda`) is built of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from common.model.facts import Facts
from common.model.kv_cache import LayerShape
from common.model.rotary import Rotary


class Linear(NamedTuple):
    """An affine map."""

    weight: Tensor
    """`[out, in]`."""
    bias: Tensor | None
    """`[out]`."""

    @classmethod
    def joined(cls, *parts: Linear) -> Linear:
        """Maps of one input as one."""
        if len(parts) == 1:
            return parts[0]
        biases = [part.bias for part in parts if part.bias is not None]
        assert len(biases) in (0, len(parts)), "biases on all parts or on none"
        weight = torch.cat([part.weight for part in parts])
        return cls(weight, torch.cat(biases) if biases else None)

    def parts(self, outputs: Sequence[int]) -> list[Linear]:
        """The maps that it joins, by how many outputs each has."""
        weights = self.weight.split(list(outputs))
        biases = [None] * len(weights) if self.bias is None else self.bias.split(list(outputs))
        return [Linear(*part) for part in zip(weights, biases, strict=True)]


class Curve(IntEnum):
    """What a gate is bent by; compiled code numbers them likewise."""

    SILU = 0
    GELU = 1
    """Approximated by tanh."""
    CLAMPED = 2
    """SiLU of what is kept within limits, by which one more than the other half is multiplied."""


class Gate(NamedTuple):
    """How one half of what the first product of a feed-forward part makes gates the other."""

    curve: Curve = Curve.SILU
    """What it is bent by."""
    steepness: float = 1.0
    """What the sigmoid reads is multiplied by; of clamped ones, as the next."""
    limit: float = math.inf
    """What it is at most, and the other half to both sides."""


_SILU = Gate()


class Growth(NamedTuple):
    """By how much queries grow with their position, step by step: among more keys a score has to
    stand out from more (Llama 4's attention temperature)."""

    part: float
    """Added to 1, times the logarithm of the step's number: from 1 on."""
    positions: int
    """Of a step."""

    def table(self, positions: int, device: torch.device) -> Tensor:
        """What queries are multiplied by, float32 `[positions]`."""
        steps = torch.arange(positions, device=device) // self.positions
        return 1 + self.part * torch.log(1 + steps.float())


class Mlp(NamedTuple):
    """A feed-forward part."""

    gate_up: Linear
    """What is gated below what it is gated with, `[2 * inner, hidden]`."""
    down: Linear
    """`[hidden, inner]`."""


class MixtureNorms(NamedTuple):
    """Norms of experts that read a row by themselves, beside a part that all rows take (Gemma 4's).
    What both make is added up, and the layer's norms are those of that part and of the sum."""

    router: Tensor
    """Of what the router reads, `[hidden]`."""
    experts: Tensor
    """Of what the experts read."""
    experts_post: Tensor
    """Of what they make."""
    shared_post: Tensor
    """Of what the part beside them makes."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Feed-forward parts of which a row takes some: a mixture of experts."""

    router: Linear
    """Scores of the experts, `[E, hidden]`; one more where `shared` is weighed by its sigmoid. Of
    float32 it may be beside other weights of 16 bits."""
    favours: Tensor | None
    """Added to scores when some are chosen, `[E]`."""
    experts: Sequence[Mlp]
    """Those to choose from."""
    shared: Mlp | None
    """What all rows take beside them."""
    chosen: int
    """How many a row takes."""
    sigmoid: bool
    """Whether scores are taken one by one; else their softmax."""
    summed: bool
    """Whether the weights of those chosen add up to one."""
    scale: float
    """By which these weights are multiplied."""
    factors: Tensor | None = None
    """By which each expert's is, too, `[E]`; None for nothing."""
    norms: MixtureNorms | None = None
    """Its own; None where the layer's are those of all it has."""


class Latents(NamedTuple):
    """What queries, keys and values of a layer are made of where attention is latent: of few
    numbers, a part of them normed (DeepSeek-V2's multi-head latent attention)."""

    product: Linear
    """Makes them of what attention reads, those of queries first: `[Q + KV, hidden]`."""
    q_norm: Tensor | None
    """Of those of queries, `[Q]`; None where there are none, and queries are made of what attention
    reads."""
    kv_norm: Tensor
    """Of the first ones of keys and values; the others stay as they are, `[KV]` at most."""
    epsilon: float
    """What these norms add to the mean square."""


class PerLayerEmbeddings(NamedTuple):
    """What layers read beside rows, each its own P numbers (Gemma's per-layer embeddings)."""

    embeddings: Tensor
    """Of tokens, `[V, layers * P]`."""
    scale: float
    """What they are multiplied by."""
    product: Linear
    """Makes of a row as it begins what they are added to, `[layers * P, hidden]`."""
    norm: Tensor
    """Of that for each layer, `[P]`."""
    epsilon: float
    """What this norm adds to the mean square."""


class PerLayerInput(NamedTuple):
    """How a layer reads its own of them."""

    gate: Linear
    """Makes of a row what gates it, `[P, hidden]`."""
    product: Linear
    """What becomes of it, `[hidden, P]`."""
    norm: Tensor
    """Of that, which is added to the row, `[hidden]`."""


@dataclass(frozen=True, kw_only=True)
class LlamaLayer:
    """Weights of one layer."""

    latents: Latents | None = None
    """What its queries, keys and values are made of; None where that is what attention reads."""
    q: Linear
    """Queries, `[heads * head_size, hidden]`; or of their latents, `[heads * head_size, Q]`."""
    k: Linear
    """Keys, `[kv_heads * head_size, hidden]`; or `[kv_heads * head_size, KV]`. Without rows, as
    that of values, where a layer sees those of another."""
    v: Linear
    """Values, of the same shape."""
    o: Linear
    """What becomes of what was attended to, `[hidden, heads * head_size]`."""
    mlp: Mlp | Mixture
    """Its feed-forward part."""
    attention_norm: Tensor | None
    """Of what attention reads, `[hidden]`."""
    attention_post_norm: Tensor | None = None
    """Of what it adds, `[hidden]`."""
    mlp_norm: Tensor | None
    """Of what the feed-forward part reads, `[hidden]`."""
    mlp_post_norm: Tensor | None = None
    """Of what it adds, `[hidden]`."""
    q_norm: Tensor | None
    """Of the queries of each head, `[head_size]`, or of all at once, `[heads * head_size]`."""
    k_norm: Tensor | None
    """Of the keys, likewise."""
    sinks: Tensor | None = None
    """Of each query head a score beside its keys', of which nothing comes, `[heads]`."""
    rotary: int = 0
    """Which of the model's rotary embeddings turns its heads."""
    window: int | None
    """Keys that a row sees, itself included; all where None."""
    per_layer_input: PerLayerInput | None = None
    """How it reads its per-layer embeddings; None where there are none."""
    scale: float = 1.0
    """What rows that leave it are multiplied by."""


@dataclass(frozen=True, kw_only=True)
class Llama:
    """A causal language model of this shape."""

    facts: Facts
    """What is known of it."""
    heads: int
    """Of the queries."""
    shapes: Sequence[LayerShape]
    """Of the keys and values that it sees, by layer: both are of one size, and so are queries."""
    seen_of: Mapping[int, int] = field(default_factory=dict)
    """The earlier layer whose keys and values one sees, by layer; others see their own."""
    inner: int
    """Numbers between the two products of a feed-forward part that all rows take; 0 without."""
    has_experts: bool = False
    """Whether any layer has experts."""
    has_sinks: bool = False
    """Whether any layer has sinks."""
    latents: tuple[int, int] | None = None
    """Q and KV of its layers' latents; None where attention is not latent."""
    whole_norms: bool = False
    """Whether queries and keys are normed over all heads at once."""
    norms_values: bool = False
    """Whether the values of each head are normed, by no weight."""
    gate: Gate = _SILU
    """Of its feed-forward parts."""
    depth: int
    """How many layers it has."""
    scale: float
    """What scores of attention are multiplied by."""
    epsilon: float
    """What norms add to the mean square."""
    rotaries: Sequence[Rotary]
    """Of its positions: layers may have several."""
    growth: Growth | None = None
    """Of its queries; None where they do not grow."""
    softcap: float | None = None
    """Scaled scores of attention become this times the tanh of what they are of it; None where they
    stay what they are."""
    embeddings: Tensor
    """`[V, hidden]`."""
    read_as: Tensor | None = None
    """The id whose embeddings an id has, int64 `[V]`; None where each has its own."""
    embedding_scale: float = 1.0
    """What a row begins with those of its token times."""
    per_layer_embeddings: PerLayerEmbeddings | None = None
    """What its layers read beside rows; None for nothing."""
    feature_scale: float = 1.0
    """What rows between layers are multiplied by where others are to read them."""
    norm: Tensor
    """Before the output layer, `[hidden]`."""
    head: Linear
    """The output layer, `[V, hidden]`."""
    head_scale: float = 1.0
    """What its logits are multiplied by, a power of two."""
    head_softcap: float | None = None
    """For them what `softcap` is for scores."""
    layers: Iterator[LlamaLayer]
    """Its layers, once: those given away are not kept, so a large model is never there twice if who
    takes them lets go of each before the next."""

    @property
    def cached(self) -> dict[int, LayerShape]:
        """Of the keys and values that layers keep, by layer: nothing where they see another's."""
        shapes = enumerate(self.shapes)
        return {
            layer: replace(shape, kv_heads=0) if layer in self.seen_of else shape
            for layer, shape in shapes
        }

    @property
    def hidden(self) -> int:
        """Numbers of a row between its layers."""
        return self.embeddings.shape[1]
