"""What was here of late: what is being replaced is not listed, but asked for all the same.

Discovery lists only pods that are ready, so a pool of one replica, and a model or a method with it,
is away for as long as that one takes to come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

_REMEMBERED_S = 3600.0  # above what workers take to come back that were all unlisted

_Thing = TypeVar("_Thing", bound=Hashable)


class Remembered(Generic[_Thing]):
    """Keeps things for another hour.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[_Thing, float] = {}

    def add(self, things: Iterable[_Thing]) -> None:
        """Takes note of what is here now."""
        self._seen |= dict.fromkeys(things, self._clock())

    @property
    def recent(self) -> Collection[_Thing]:
        """Those of the last hour."""
        now = self._clock()
        self._seen = {thing: at for thing, at in self._seen.items() if now - at <= _REMEMBERED_S}
        return self._seen.keys()
