"""Estimates with 95 % confidence intervals, over repetitions and prompts.

A variant is a table of tokens and one of seconds, repetitions by prompts; its rate in a
repetition is the sum of the one over the sum of the other. What is reported is the median of the
repetitions' rates, or of their quotients with another variant's: what slows one moment slows both.
The interval draws prompts anew, the same ones for both variants of a quotient, and how many of the
repetitions lie below the true median, which each does with a chance of one half: it reaches from
the repetition just below that median to the one just above. So from six repetitions on it holds the
median as often as it says, while a bootstrap over seven would with 87 %; of fewer see `sure`. One
repetition has none: how far another one would be off is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measurement import Pass

DRAWS = 2000
SURE = 95.0
"""Percent."""
TAILS = (50 - SURE / 2, 50 + SURE / 2)

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure and how sure it is."""

    value: float
    low: float | None
    """Lower end of the 95 % interval; None where one repetition says nothing of it."""
    high: float | None
    """Upper end."""

    @property
    def within(self) -> tuple[float, float]:
        """The interval; where there is none the figure alone."""
        low, high = self.low, self.high
        return (self.value, self.value) if low is None or high is None else (low, high)


@dataclass(frozen=True)
class Grid:
    """What was measured of one variant."""

    tokens: Array  # [repetitions, prompts]
    seconds: Array  # [repetitions, prompts]

    def rates(self) -> Array:
        """Return tokens a second of each repetition, `[1, repetitions]`."""
        return self._of(np.ones((1, self.tokens.shape[1])))

    def drawn(self) -> Array:
        """Return the same for each draw of prompts, `[draws, repetitions]`."""
        return self._of(_weights(self.tokens.shape[1]))

    def _of(self, weights: Array) -> Array:
        return quotients(weights @ self.tokens.T, weights @ self.seconds.T)


def grid(passes: Sequence[Pass], prompts: Sequence[int] | None = None) -> Grid:
    """Arrange repetitions of a variant that decodes one prompt after the other.

    Args:
        passes: The repetitions.
        prompts: Which prompts; None takes all.
    """
    rows = [one.samples for one in passes]
    chosen = range(len(rows[0])) if prompts is None else prompts
    return Grid(
        np.array([[float(row[index].tokens) for index in chosen] for row in rows]),
        np.array([[row[index].seconds for index in chosen] for row in rows]),
    )


def whole(passes: Sequence[Pass]) -> Grid:
    """Arrange repetitions in which the prompts ran at the same time: each pass is one figure."""
    return Grid(
        np.array([[float(one.tokens)] for one in passes]),
        np.array([[one.seconds] for one in passes]),
    )


def rate(measured: Grid) -> Estimate:
    """Estimate tokens a second."""
    return _estimate(measured.rates(), measured.drawn())


def ratio(over: Grid, under: Grid) -> Estimate:
    """Estimate how many times as fast one variant is as another, by repetitions in pairs."""
    return _estimate(quotients(over.rates(), under.rates()), quotients(over.drawn(), under.drawn()))


def sure(repetitions: int) -> float:
    """Return with how many percent the interval of single figures holds the true median.

    Of few repetitions it is their range; all of them may lie on one side.
    """
    return min(SURE, 100 * (1 - 2 * 0.5**repetitions))


def quotients(over: Array, under: Array) -> Array:
    """Divide; 0 where there is nothing to divide by."""
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _estimate(once: Array, drawn: Array) -> Estimate:
    """Return the median of what was measured, and between what the true one lies.

    Args:
        once: Of each repetition, `[1, repetitions]`.
        drawn: The same for each draw of prompts, `[draws, repetitions]`.
    """
    value, repetitions = float(np.median(once)), once.shape[1]
    if repetitions == 1:
        return Estimate(value=value, low=None, high=None)
    rising = np.sort(drawn, axis=1)
    below = np.random.default_rng(1).binomial(repetitions, 0.5, size=(DRAWS, 1))
    under = np.take_along_axis(rising, np.maximum(below - 1, 0), axis=1)
    above = np.take_along_axis(rising, np.minimum(below, repetitions - 1), axis=1)
    low, high = np.percentile(under, TAILS[0]), np.percentile(above, TAILS[1])
    return Estimate(value=value, low=float(low), high=float(high))


def _weights(prompts: int) -> Array:
    """How often each draw takes each prompt, `[draws, prompts]`; the same at every call."""
    chances = np.full(prompts, 1 / prompts)
    return np.random.default_rng(0).multinomial(prompts, chances, size=DRAWS).astype(np.float64)
