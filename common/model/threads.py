"""How many CPU threads a pass of few rows takes, where a pass of many has more.

The others are on processors that a drafter may have: for some milliseconds of each round, if it is
on this machine. To leave them to it costs a small target next to nothing. One whose weights memory
has to bring for each pass is so much sooner done with all of them that its drafter had better wait.
No bit of a pass hangs on its threads.
"""

from __future__ import annotations

import logging
import math
import time

from common.model.runner import Runner
from common.model.segment import Segment

_SAVED_S, _SAVED = 0.003, 0.1
"""What a pass must be shorter by, in seconds: more than the drafts of a round usually take; and how
much of it, for a machine's moods change long passes by more than that."""

_TURNS, _MOST_TURNS = 3, 30
_ENOUGH_S = 2.0
"""Passes are timed so often at least, and until they have shown that, or so much time is gone."""

_log = logging.getLogger(__name__)


def choose(runner: Runner) -> None:
    """Gives passes of few rows all threads, if one of a row is much shorter for it.

    Args:
        runner: Idle.
    """
    if runner.most_threads == runner.threads:
        return
    lease = runner.pool.lease(1)
    row = Segment([0], 0, lease.slots, wanted=(0,))
    least, began = {False: math.inf, True: math.inf}, time.perf_counter()
    saves = False
    # In turns, and often: a drafter that starts beside it has the other processors meanwhile.
    for turn in range(1, _MOST_TURNS + 1):
        for whether in least:
            runner.spread(whether)
            started = time.perf_counter()
            runner.forward([row])
            least[whether] = min(least[whether], time.perf_counter() - started)
        saves = least[False] - least[True] >= max(_SAVED_S, _SAVED * least[False])
        if turn >= _TURNS and (saves or time.perf_counter() - began > _ENOUGH_S):
            break
    lease.release()
    runner.spread(saves)
    facts = {
        "own_ms": round(least[False] * 1e3, 3),
        "all_ms": round(least[True] * 1e3, 3),
        "threads": runner.threads,
    }
    _log.info("threads of a pass of few rows", extra=facts)
