"""An EAGLE-3 head in float32, a row at a time: what those that serve and train are held to."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.drafting_head import MOST_DEPTH
from common.model.eagle.weights import EagleWeights
from common.model.keyed_head import Behind
from common.model.kv_cache import ZERO_SLOT
from tests.unit.common.model.eagle import small_heads
from tests.unit.common.model.eagle.small_heads import TARGET, VOCAB

POSITIONS = 64
EMBEDDINGS = small_heads.normal(VOCAB, TARGET, seed=30).float()

Step = tuple[list[int], list[int]]
"""Parents of a depth, and the tokens by which they are followed."""


class Text(NamedTuple):
    """A text, and where its keys go."""

    states: Tensor
    tokens: list[int]
    slots: np.ndarray

    def rows(self, start: int, end: int, *, holes: Seq[int] = ()) -> Behind:
        """Some of its rows, which see nothing at some positions."""
        slots = self.slots.copy()
        slots[[*holes]] = ZERO_SLOT
        return Behind(self.states[start:end], self.tokens[start:end], start, slots)


class Plain:
    """A head in float32 for one text, a row at a time, with lists of keys that grow."""

    def __init__(self, weights: EagleWeights, embeddings: Tensor) -> None:
        self._w, self._angles = weights, weights.rotary.table(POSITIONS + MOST_DEPTH)
        own = weights.embeddings
        self._embeddings = embeddings if own is None else own.float()
        self._shape = weights.kv_heads, weights.head_size

    def begun(self, states: Tensor) -> Tensor:
        """What a row of the target's begins with. # [taps * t] -> [d]"""
        bias = self._w.fc_bias
        return F.linear(states.float(), self._w.fc.float(), None if bias is None else bias.float())

    def key(self, x: Tensor, token: int, position: int) -> Tensor:
        """Keys beside values. # [kv heads, 2 D]"""
        read = self._read(x, token)
        keys = self._turned((self._w.k.float() @ read).view(self._shape), position)
        return torch.cat((keys, (self._w.v.float() @ read).view(self._shape)), dim=1)

    def row(self, x: Tensor, token: int, position: int, keys: Seq[Tensor]) -> tuple[Tensor, Tensor]:
        """What a row ends with, and its logits, where it sees some keys. # [d], [W]"""
        weights, read = self._w, self._read(x, token)
        size, group = weights.head_size, weights.heads // weights.kv_heads
        queries = self._turned((weights.q.float() @ read).view(-1, size), position)
        attended = []
        for head, query in enumerate(queries):
            mine = torch.stack([key[head // group] for key in keys])
            chances = (mine[:, :size] @ query * size**-0.5).softmax(0)
            attended.append(chances @ mine[:, size:])
        residual = self._norm(x, weights.hidden_norm) if weights.norm_before_residual else x
        r = residual + weights.o.float() @ torch.cat(attended)
        m = self._norm(r, weights.mlp_norm)
        inner = F.silu(weights.gate.float() @ m) * (weights.up.float() @ m)
        out = r + weights.down.float() @ inner
        return out, weights.lm_head.float() @ self._norm(out, weights.norm)

    def _read(self, x: Tensor, token: int) -> Tensor:
        embedded = self._norm(self._embeddings[token], self._w.input_norm)
        return torch.cat((embedded, self._norm(x, self._w.hidden_norm)))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * (x.square().mean() + self._w.epsilon).rsqrt() * weight.float()

    def _turned(self, heads: Tensor, position: int) -> Tensor:
        cos, sin = (part[position].repeat(2) for part in self._angles)
        first, second = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-second, first), dim=-1) * sin


def plainly(
    weights: EagleWeights,
    texts: Seq[Text],
    steps: Seq[Step],
    holes: Seq[Seq[int]],
    embeddings: Tensor = EMBEDDINGS,
    *,
    absent: bool = False,
) -> list[Tensor]:
    """What a head has to find; holes are keys of zeros, or `absent`."""
    plain = Plain(weights, embeddings)
    zero = torch.zeros(weights.kv_heads, 2 * weights.head_size)
    rows: list[tuple[int, list[Tensor], Tensor]] = []  # end, keys, what it ended with
    first = []
    for text, none in zip(texts, holes, strict=True):
        begun = [plain.begun(states) for states in text.states]
        keys = [
            zero if at in none else plain.key(x, token, at)
            for at, (x, token) in enumerate(zip(begun, text.tokens, strict=True))
            if not (absent and at in none)
        ]
        end = len(begun) - 1
        out, logits = plain.row(begun[end], text.tokens[end], end, keys)
        rows.append((end, keys, out))
        first.append(logits)
    found = [torch.stack(first)]
    for parents, tokens in steps:
        further, logits_of = [], []
        for parent, token in zip(parents, tokens, strict=True):
            end, keys, x = rows[parent]
            keys = [*keys, plain.key(x, token, end + 1)]
            out, logits = plain.row(x, token, end + 1, keys)
            further.append((end + 1, keys, out))
            logits_of.append(logits)
        rows = further
        found.append(torch.stack(logits_of))
    return found
