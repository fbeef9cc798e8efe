"""An EAGLE-3 head that can be trained, run as it drafts: on its own output, depth after depth.

With one pass over a text, every position's draft is computed at once. The row at position i starts
from the target's states there and the token after it. One depth on it is the same row again: what
it made of itself, the next token, and for keys those of the text up to i and its own at each depth
before. So a head learns from its own mistakes ("training-time test", Li et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.model.eagle.weights import EagleWeights

_NORMS = ("input_norm", "hidden_norm", "mlp_norm", "norm")
_MATRICES = ("fc", "q", "k", "v", "o", "gate", "up", "down", "lm_head")
_TRAINED = ("fc_bias", *_NORMS, *_MATRICES)
"""Weights that change, by their names in `EagleWeights`."""


class EagleNet(nn.Module):
    """A head.

    Args:
        weights: What it begins with; copied, in float32.
    """

    fc: Tensor
    fc_bias: Tensor | None
    input_norm: Tensor
    hidden_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    norm: Tensor
    lm_head: Tensor
    ids: Tensor | None
    embeddings: Tensor | None

    def __init__(self, weights: EagleWeights) -> None:
        super().__init__()
        for name in _TRAINED:
            held = getattr(weights, name)
            copied = None if held is None else nn.Parameter(held.detach().float().clone())
            self.register_parameter(name, copied)
        self.register_buffer("ids", weights.ids)
        self.register_buffer("embeddings", weights.embeddings)
        self.taps, self.head_size, self.kv_heads = weights.taps, weights.head_size, weights.kv_heads
        self.rotary, self.epsilon = weights.rotary, weights.epsilon
        self.norm_before_residual = weights.norm_before_residual

    def depths(
        self, features: Tensor, ids: Tensor, embeddings: Tensor, most: int
    ) -> Iterator[Tensor]:
        """Logits of every position's draft, depth by depth, with the text's own tokens drafted.

        Args:
            features: The target's states at each position. # [B, T, taps * t]
            ids: The text. # [B, T]
            embeddings: Of the target, used where the head has none. # [V, d]
            most: How many depths.

        Yields:
            At depth j, of the tokens at i + 2 + j for each position i. # [B, T - 1 - j, W]
        """
        rows = ids.shape[1] - 1
        cos, sin = (part.to(features.device) for part in self.rotary.table(rows + most))
        table = embeddings if self.embeddings is None else self.embeddings
        x = F.linear(features[:, :rows].to(self.fc.dtype), self.fc, self.fc_bias)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        for depth in range(most):
            count = rows - depth
            x = x[:, :count]
            tokens = F.embedding(ids[:, 1 + depth : 1 + depth + count], table).to(x.dtype)
            normed = self._norm(x, self.hidden_norm)
            both = torch.cat((self._norm(tokens, self.input_norm), normed), dim=-1)
            turn = cos[depth : depth + count], sin[depth : depth + count]
            queries = _turned(self._heads(F.linear(both, self.q)), *turn)
            keys.append(_turned(self._heads(F.linear(both, self.k)), *turn))
            values.append(self._heads(F.linear(both, self.v)))
            attended = self._attend(queries, keys, values)
            x = (normed if self.norm_before_residual else x) + F.linear(attended, self.o)
            inner = self._norm(x, self.mlp_norm)
            x = x + F.linear(
                F.silu(F.linear(inner, self.gate)) * F.linear(inner, self.up), self.down
            )
            yield F.linear(self._norm(x, self.norm), self.lm_head)

    def weights(self) -> EagleWeights:
        """The weights in the form that is saved."""
        tensors: dict[str, Any] = dict(self.named_parameters())
        return EagleWeights(
            taps=self.taps,
            ids=self.ids,
            embeddings=self.embeddings,
            head_size=self.head_size,
            rotary=self.rotary,
            epsilon=self.epsilon,
            norm_before_residual=self.norm_before_residual,
            **{name: value.detach() for name, value in tensors.items()},
        )

    def _attend(self, queries: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Of rows that see the text up to their position, and their own keys of later depths."""
        count = queries.shape[-2]
        groups = queries.shape[1] // self.kv_heads
        split = queries.unflatten(1, (self.kv_heads, groups))  # [B, kv, groups, rows, D]
        scale = self.head_size**-0.5
        first = keys[0][:, :, :count, :]
        scores = split @ first[:, :, None].mT * scale  # [B, kv, groups, rows, rows]
        ahead = torch.ones(count, count, dtype=torch.bool, device=queries.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
        own = [(split * key[:, :, None, :count]).sum(-1, keepdim=True) * scale for key in keys[1:]]
        chances = (
            torch.cat([scores, *own], dim=-1).softmax(-1, dtype=torch.float32).to(queries.dtype)
        )
        attended = chances[..., :count] @ values[0][:, :, None, :count]
        for place, value in enumerate(values[1:]):
            attended = attended + chances[..., count + place, None] * value[:, :, None, :count]
        rows: Tensor = attended.flatten(1, 2).transpose(1, 2).flatten(2)
        return rows

    def _heads(self, x: Tensor) -> Tensor:
        """# [B, rows, heads * D] -> [B, heads, rows, D]"""
        apart: Tensor = x.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
        return apart

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        normed: Tensor = F.rms_norm(x.float(), weight.shape, weight, self.epsilon).to(x.dtype)
        return normed


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads turned by their positions, as `rotate_half` does. # [B, heads, rows, D]"""
    first, second = x.chunk(2, dim=-1)
    both = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return both.to(x.dtype)
