"""A moving average of what happens now and then, which fades while nothing does."""

from __future__ import annotations

import math

_HELD_S = 2.0
_HALF_LIFE_S = 2.0


class FadingMean:
    """The mean of the latest values; where none come it is held for a moment, then falls to 0.

    One thread adds; others may read.

    Args:
        weight: Of a new value, from 0 to 1.
    """

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._mean = 0.0
        self._at: float | None = None

    def add(self, value: float, now: float) -> None:
        """Takes a value.

        Args:
            value: Any.
            now: Seconds, of the monotonic clock.
        """
        mean = value if self._at is None else self.at(now)
        self._mean = mean + self._weight * (value - mean)
        self._at = now

    def at(self, now: float, *, held: bool = False) -> float:
        """Returns the mean as of now.

        Args:
            now: Seconds, of the monotonic clock.
            held: Whether it is to stand though nothing was added lately.
        """
        if self._at is None or held:
            return self._mean
        halvings = max(now - self._at - _HELD_S, 0.0) / _HALF_LIFE_S
        return self._mean * math.pow(0.5, halvings)
