"""Pauses between attempts at what may fail again."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Pauses that double, with jitter, so that many who failed together do not come back as one.

    Args:
        first_s: The first pause at most, in seconds.
        most_s: The longest, in seconds.
        jitter: Share of a pause that is left to chance.
    """

    def __init__(self, first_s: float = 0.5, most_s: float = 30.0, jitter: float = 0.5) -> None:
        self._first_s, self._most_s, self._jitter = first_s, most_s, jitter
        self._next_s = first_s

    def reset(self) -> None:
        """Begins again with the first pause."""
        self._next_s = self._first_s

    async def pause(self) -> None:
        """Waits."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        await asyncio.sleep(pause_s * random.uniform(1 - self._jitter, 1))
