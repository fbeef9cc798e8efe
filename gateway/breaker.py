"""Keeps requests away from a worker that answers its status stream but fails what it is asked.

Closed: requests pass. After a few failures in a row it opens: none pass for a while. Then one
passes every so often, and the first that succeeds closes it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_FAILURES = 3
_FIRST_PAUSE_S = 1.0
_MOST_PAUSE_S = 30.0


class Breaker:
    """The circuit breaker of one worker.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = 0.0
        self._opened_at = 0.0
        self._shut_until = 0.0

    @property
    def allows(self) -> bool:
        """Whether a request may be sent."""
        return self._failures < _FAILURES or self._clock() >= self._shut_until

    def tried(self) -> None:
        """Notes that a request is sent; while open, the next one has to wait for its outcome."""
        if self._failures >= _FAILURES:
            self._shut_until = self._clock() + self._pause_s

    def succeeded(self) -> None:
        """Notes that the worker did what it was asked."""
        self._failures, self._pause_s = 0, 0.0

    def failed(self) -> None:
        """Notes a failure; many at the same time open it once."""
        self._failures += 1
        now = self._clock()
        if self._failures < _FAILURES or (self._pause_s and now < self._opened_at + self._pause_s):
            return
        self._opened_at = now
        self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _MOST_PAUSE_S)
        self._shut_until = now + self._pause_s
