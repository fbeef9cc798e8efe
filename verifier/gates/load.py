"""How many sequences an engine has, of late: what drafts are worth hangs on it."""

from __future__ import annotations

import math

_MEAN_S = 0.2
"""Over which the number is averaged."""

_ALONE_S = 0.05
"""One that is left of many is alone after so long, whatever the average: while others follow those
that end it is for less. Of two one may be missing for longer, again and again."""


def level_of(sequences: float) -> int:
    """The power of two nearest to so many sequences; 0 is one alone."""
    return round(math.log2(max(sequences, 1.0)))


class LoadLevel:
    """Tells loads apart, each about twice the one before."""

    def __init__(self) -> None:
        self.level = 0
        """Of the sequences of late, see `level_of`."""
        self.seen_at = 0.0
        """When it was looked at last, in seconds of the monotonic clock."""
        self._mean = 0.0
        self._many, self._alone_since = False, math.inf  # before one was alone

    def see(self, sequences: int, now: float, idle_s: float = 0.0) -> int:
        """The level, of what is there now.

        Args:
            sequences: How many.
            now: Seconds, of the monotonic clock.
            idle_s: Seconds in which there were none, since it was looked at last.
        """
        if sequences >= 2 * self._mean:  # more is more at once, less may be a gap
            self._mean = sequences
        news = 1 - math.exp(-max(now - self.seen_at, 0.0) / _MEAN_S)
        self._mean += news * (sequences - self._mean)
        self.seen_at = now
        if sequences > 1:
            self._many, self._alone_since = self.level > 1, math.inf
        else:
            self._alone_since = now if idle_s else min(self._alone_since, now)
            if self._many and now >= self._alone_since + _ALONE_S:
                self._mean = sequences
        self.level = level_of(self._mean)
        return self.level
