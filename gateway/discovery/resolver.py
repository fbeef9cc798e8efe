"""The interface of everything that finds workers, and the pauses between its attempts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

Report = Callable[[frozenset[str]], None]
"""Takes all addresses there are now, host:port each."""


class Resolver(Protocol):
    """Finds the workers of one target."""

    async def follow(self, report: Report) -> None:
        """Reports the addresses at once and whenever they change, until cancelled.

        A source that is away changes nothing: the workers last reported are probably still
        there, and those that are not show it on their own streams.
        """


class Backoff:
    """Pauses that double, with jitter, so that many gateways do not come back as one.

    Args:
        first_s: The first pause, in seconds.
        most_s: The longest, in seconds.
    """

    def __init__(self, first_s: float = 0.5, most_s: float = 30.0) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._next_s = first_s

    def reset(self) -> None:
        """Begins again with the first pause."""
        self._next_s = self._first_s

    async def pause(self) -> None:
        """Waits."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._most_s)
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
