"""What a step takes by its rows, and how many more of them pay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Seq

StepTable = Seq[tuple[int, float]]
"""Seconds of a step by rows, rows rising; at least two entries."""

Others = tuple[float, float]
"""Rows that the other sequences have in a step, and tokens they commit in it."""

_BEYOND = 4
"""Candidates looked at past the best number: costs rise in steps of as many rows."""


def seconds_of(steps: StepTable, rows: float) -> float:
    """Seconds of a step of so many rows, read between the entries of a table and beyond them."""
    at = bisect_left(steps, rows, key=lambda entry: entry[0])
    right = min(max(at, 1), len(steps) - 1)
    (x0, y0), (x1, y1) = steps[right - 1], steps[right]
    return y0 + max(rows - x0, 0) * (y1 - y0) / (x1 - x0)


class Worth:
    """How many candidates, likeliest first, give the most tokens for the seconds of the step.

    Args:
        seconds: What a step takes by its rows, to any scale.
        others: What else is in it.
        nodes: Draft nodes that are in it already.
    """

    def __init__(
        self, seconds: Callable[[float], float], others: Others = (0.0, 0.0), nodes: int = 0
    ) -> None:
        rows, tokens = others
        self._seconds, self._rows, self._tokens = seconds, rows + 1 + nodes, tokens + 1.0
        self._rate = self._tokens / seconds(self._rows)
        self.seen = 0
        """Candidates so far."""
        self.best = 0
        """How many of the first are worth checking."""

    @property
    def settled(self) -> bool:
        """Whether further candidates will hardly change that."""
        return self.seen >= self.best + _BEYOND

    def add(self, chance: float) -> None:
        """Takes the next candidate, with the chance that the text goes through it."""
        self.seen += 1
        self._tokens += chance
        rate = self._tokens / self._seconds(self._rows + self.seen)
        if rate > self._rate:
            self.best, self._rate = self.seen, rate
