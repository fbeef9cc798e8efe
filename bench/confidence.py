"""Estimates with 95 % confidence intervals: a bootstrap over repetitions and prompts.

A variant is a table of tokens and one of seconds, repetitions by prompts; its rate in a
repetition is the sum of the one over the sum of the other. What is reported is the median of the
repetitions' rates, or of their quotients with another variant's: what slows one moment slows both.
The interval draws repetitions and prompts anew, the same ones for both variants of a quotient.
One repetition has none: how far another one would be off is not known. Where each repetition is one
figure, as of several prompts at once, that of fewer than `LEAST_REPETITIONS` is their range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measurement import Pass

DRAWS = 2000
TAILS = (2.5, 97.5)

LEAST_REPETITIONS = 6
"""Of fewer, more than a fortieth of the draws of repetitions have the least of all as their median,
so that the interval ends there: it holds the true median with the chance `range_holds`."""

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

    @property
    def shape(self) -> tuple[int, int]:
        """Repetitions and prompts."""
        repetitions, prompts = self.tokens.shape
        return repetitions, prompts

    def rates(self, weights: Array) -> Array:
        """Return tokens a second of each draw of prompts in each repetition.

        Args:
            weights: How often each prompt was drawn, `[draws, prompts]`.
        """
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
    repetitions, prompts = measured.shape
    once = np.ones((1, prompts))
    return _estimate(
        measured.rates(once), measured.rates(_weights(prompts)), _repetitions(repetitions)
    )


def ratio(over: Grid, under: Grid) -> Estimate:
    """Estimate how many times as fast one variant is as another, by repetitions in pairs."""
    once = [measured.rates(np.ones((1, measured.shape[1]))) for measured in (over, under)]
    drawn = [measured.rates(_weights(measured.shape[1])) for measured in (over, under)]
    return _estimate(quotients(*once), quotients(*drawn), _repetitions(over.shape[0]))


def range_holds(repetitions: int) -> float:
    """Return the chance that a median lies between the least and the most of some repetitions."""
    return 1 - 2 * 0.5**repetitions


def quotients(over: Array, under: Array) -> Array:
    """Divide; 0 where there is nothing to divide by."""
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def _estimate(once: Array, drawn: Array, repetitions: NDArray[np.int64]) -> Estimate:
    """Return the median of what was measured, and the spread of the drawn medians.

    Args:
        once: By repetition, `[1, repetitions]`.
        drawn: The same for each draw of prompts, `[draws, repetitions]`.
        repetitions: Which of them each draw takes, `[draws, repetitions]`.
    """
    value = float(np.median(once))
    if once.shape[1] == 1:
        return Estimate(value=value, low=None, high=None)
    medians = np.median(np.take_along_axis(drawn, repetitions, axis=1), axis=1)
    low, high = np.percentile(medians, TAILS)
    return Estimate(value=value, low=float(low), high=float(high))


def _weights(prompts: int) -> Array:
    """How often each draw takes each prompt, `[draws, prompts]`; the same at every call."""
    chances = np.full(prompts, 1 / prompts)
    return np.random.default_rng(0).multinomial(prompts, chances, size=DRAWS).astype(np.float64)


def _repetitions(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(count, size=(DRAWS, count))
