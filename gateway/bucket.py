"""A token bucket: what may be spent at once, and how fast it comes back."""

from __future__ import annotations

import time
from collections.abc import Callable


class Bucket:
    """Fills at a steady rate up to a limit.

    Args:
        rate: What comes back in a second.
        burst: What it holds at most, and at first.
        clock: Seconds that only grow.
    """

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._level = burst
        self.taken = 0
        """Successful calls of `take`."""
        self._at = clock()

    @property
    def level(self) -> float:
        """What is in it; below 0 where more was charged than there was."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level

    def take(self) -> bool:
        """Takes one, where there is one."""
        if self.level < 1:
            return False
        self._level -= 1
        self.taken += 1
        return True

    def charge(self, amount: float) -> None:
        """Takes what was spent already, whether it was there or not."""
        self._level = self.level - amount

    def wait_s(self) -> float:
        """Seconds until it is above 0 again."""
        return max(0.0, -self.level / self._rate)
