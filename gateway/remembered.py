"""What was here of late: what is being replaced is not listed, but asked for all the same.

Discovery lists only pods that are ready, so a pool of one replica, and a model or a method with it,
is away for as long as that one takes to come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

_REMEMBERED_S = 3600.0  # above what workers take to come back that were all unlisted

_Name = TypeVar("_Name", bound=Hashable)


class Remembered(Generic[_Name]):
    """Keeps names for another hour.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[_Name, float] = {}

    def add(self, names: Iterable[_Name]) -> None:
        """Takes note of what is here now."""
        self._seen |= dict.fromkeys(names, self._clock())

    @property
    def names(self) -> Collection[_Name]:
        """Those of the last hour."""
        now = self._clock()
        self._seen = {name: at for name, at in self._seen.items() if now - at <= _REMEMBERED_S}
        return self._seen.keys()
