"""What fails in a verifier's engine and costs no text: counted each time, told of now and then.

What lasts, as too little memory for a batch, fails in every step: told of each time it would fill
the log, and take the time of the thread that owns the model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

_TOLD_EVERY_S = 10.0
"""Of one kind."""

_EVENTS = {
    "pass": "engine step failed; trying its sequences one by one",
    "passes": "several passes failed",
    "draft": "a proposer failed",
}
"""By where it was, what logs say."""

_log = logging.getLogger(__name__)


@dataclass
class _Kind:
    """Failures of one type at one place, of one method."""

    told_at: float = -inf
    untold: int = 0


class Failures:
    """Takes them on the engine's thread; others may read.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = dict.fromkeys(_EVENTS, 0)
        """By where they were."""
        self._clock = clock
        self._kinds: dict[tuple[str, object, type[Exception]], _Kind] = {}

    def add(self, where: str, error: Exception, names: Mapping[str, object]) -> None:
        """Counts a failure, and logs it unless one of its kind was a moment ago.

        Args:
            where: One of those counted.
            error: With its traceback.
            names: What had to do with it, for the log.
        """
        self.counts[where] += 1
        kind = self._kinds.setdefault((where, names.get("method"), type(error)), _Kind())
        kind.untold += 1
        now = self._clock()
        if now >= kind.told_at + _TOLD_EVERY_S:
            facts = {**names, "since_the_last": kind.untold}
            _log.warning(_EVENTS[where], exc_info=error, extra=facts)
            kind.told_at, kind.untold = now, 0
