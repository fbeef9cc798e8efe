"""Several passes in one call: rows go on with the token chosen after them, without anybody between.

What such a call is told and what it says; `Runner.roll` makes one, where a model can.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from common.model.output import Output


class Adjusting(NamedTuple):
    """What changes a row's logits before all else: biases, and then a repetition penalty."""

    ids: Tensor
    """Whose logits have something added, int64 `[B]`."""
    biases: Tensor
    """What, float32 `[B]`."""
    penalty: float
    """Logits of ids that occur already are divided by it, or multiplied where they are negative."""
    seen: Tensor | None
    """Which ids occur before the path, bool `[V]`; None where there is no penalty."""
    path: Sequence[int]
    """Ids after those."""


class Drawing(NamedTuple):
    """How one token is drawn: as `SamplingParams` say, and where it stands."""

    seed: int
    """64 bits."""
    position: int
    """Absolute, of the token."""
    top_k: int
    """0 keeps all."""
    temperature: float
    """0 for the likeliest token."""
    top_p: float
    """1 keeps all."""
    min_p: float
    """0 keeps all."""
    adjusting: Adjusting | None = None
    """What is done to its logits before all else."""


class Certainty(NamedTuple):
    """How likely tokens are right, and how likely what is still computed has to be."""

    bounds: Sequence[float]
    """Rising, `[ranges - 1]`: of how far the second best score is behind the best."""
    chances: Sequence[Sequence[float]]
    """That the token with the best is right, of each row, `[M, ranges]`."""
    least: Sequence[Sequence[float]]
    """Of each row, `[M]`: it ends before the first token with which all chances multiply to less
    than that token's number here. The last holds for all further ones; without any it goes on."""
    tokens: Sequence[int]
    """So many of the tokens that count a row has already, `[M]`; -1 where what follows it does not
    count."""
    right: Sequence[float]
    """Chance that those are right, `[M]`."""


class Limit(NamedTuple):
    """When a text is over."""

    tokens: int
    """After so many more, 1 at least."""
    stops: Collection[int]
    """And after any of these."""


class RollOptions(NamedTuple):
    """How rows go on, and how far."""

    best: int = 1
    """How many of the best tokens to tell of each row; two or more beside a certainty, and for the
    CPU's compiled code beside drawings."""
    certainty: Certainty | None = None
    """Of the tokens; where it is low, a row goes no further."""
    news: int = -1
    """A descriptor; where it can be read from, no further pass is begun."""
    drawings: Sequence[Drawing] = ()
    """How the token after each wanted row is drawn, `[M]`, and further ones at the positions that
    follow; none where all are the likeliest."""
    limits: Sequence[Limit] = ()
    """When the text is over that a row is the end of, `[M]`; none where no row is."""


class Rolled(NamedTuple):
    """The best tokens of rows, and of those that follow them, level by level."""

    ids: np.ndarray
    """The best first, of equally good ones the lowest; `[levels + 1, M, best]`. -1 where a row was
    over, had gone far enough or nothing more survives, and where compiled code is not sure of a
    draw."""
    behind: np.ndarray
    """How much less their scores are than the best, float32; the same shape."""
    output: Output | None
    """Of the first pass where it is not sure of a row's first token; else of no meaning."""
