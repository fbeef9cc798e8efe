"""Weights of an assistant: a small decoder that reads its target's keys, as Gemma 4 has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from common.model.llama import Linear, Llama, LlamaLayer


class Clusters(NamedTuple):
    """Tokens of which a row guesses those of the likeliest clusters."""

    centroids: Linear
    """Scores the clusters, `[C, d]`."""
    tokens: Tensor
    """Ids of each, int64 `[C, V / C]`."""
    taken: int
    """How many a row takes."""


@dataclass(frozen=True, kw_only=True)
class AssistantWeights:
    """An assistant of hidden size d for a target of hidden size t and vocabulary V."""

    llama: Llama
    """What it is but for its layers: they have no keys of their own."""
    layers: Sequence[LlamaLayer]
    """Its layers."""
    sources: Sequence[int]
    """The target's layer whose keys and values each of them sees."""
    into: Linear
    """Makes a row of the token's embedding and the state before it, `[d, 2 t]`."""
    out_of: Linear
    """Makes of a row the state that the next one begins with, `[t, d]`."""
    clusters: Clusters | None
    """What it guesses among; None for all tokens."""
