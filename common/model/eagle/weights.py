"""Weights of an EAGLE-3 head (Li et al., 2025): one decoder layer over the target's own states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from common.model.drafting_head import MOST_DRAFTED
from common.model.kv_cache import LayerShape
from common.model.rotary import Rotary


@dataclass(frozen=True, kw_only=True)
class EagleWeights:
    """A head of hidden size d over a target of hidden size t and vocabulary V.

    Tensors are of any floating-point type, but where another is named.
    """

    taps: tuple[int, ...]
    """Layers of the target whose inputs the head reads, rising; 0 is the first layer."""
    fc: Tensor
    """What makes a row of those inputs side by side, `[d, taps * t]`."""
    fc_bias: Tensor | None = None
    """`[d]`."""
    input_norm: Tensor
    """Of the token's embedding, `[d]`."""
    hidden_norm: Tensor
    """Of the row, `[d]`."""
    q: Tensor
    """Queries, of both normed side by side, the embedding first, `[heads * head_size, 2 d]`."""
    k: Tensor
    """Keys, `[kv_heads * head_size, 2 d]`."""
    v: Tensor
    """Values, of the same shape."""
    o: Tensor
    """`[d, heads * head_size]`."""
    mlp_norm: Tensor
    """`[d]`."""
    gate: Tensor
    """`[inner, d]`."""
    up: Tensor
    """`[inner, d]`."""
    down: Tensor
    """`[d, inner]`."""
    norm: Tensor
    """Before the output matrix, `[d]`; what the next row is made of has not gone through it."""
    lm_head: Tensor
    """`[W, d]`, of the W tokens that the head can guess."""
    ids: Tensor | None
    """The target's ids of those tokens, int64 `[W]`, rising; None where they are all."""
    embeddings: Tensor | None
    """`[V, d]`; None where the target's serve, and d is t."""
    head_size: int
    """Numbers of a head of attention."""
    rotary: Rotary
    """Of its positions."""
    epsilon: float
    """What norms add to the mean square."""
    norm_before_residual: bool = False
    """Whether the residual stream begins with the normed row rather than the row."""

    def to(self, device: torch.device, dtype: torch.dtype) -> EagleWeights:
        """The same elsewhere, and of a type; ids keep theirs."""
        moved: dict[str, Any] = {
            name: value.to(device, dtype if value.is_floating_point() else value.dtype)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, rotary=self.rotary.to(device), **moved)

    @property
    def shape(self) -> LayerShape:
        """Of its layer of the cache."""
        size = self.head_size
        return LayerShape(self.kv_heads, size, size, spare=MOST_DRAFTED)

    @property
    def hidden(self) -> int:
        """d."""
        return self.fc.shape[0]

    @property
    def heads(self) -> int:
        """Of the queries."""
        return self.q.shape[0] // self.head_size

    @property
    def kv_heads(self) -> int:
        """Of keys and values."""
        return self.k.shape[0] // self.head_size
