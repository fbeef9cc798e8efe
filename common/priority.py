"""Which threads go first where there are fewer processors than threads.

On Linux a thread that wakes takes the processor of one that has had it for a while. A message would
interrupt a pass of the model for each thread it goes through, and the other threads of the pass
would wait for the interrupted one. Threads that run as a batch wake on a processor that has nothing
to do, or when another's turn is over, some milliseconds at most.
"""

from __future__ import annotations

import os
from contextlib import suppress


def stand_back() -> None:
    """Has the calling thread, and those it starts from now on, interrupt no other."""
    _schedule("SCHED_BATCH")


def go_first() -> None:
    """Takes `stand_back` back, for the calling thread."""
    _schedule("SCHED_OTHER")


def _schedule(policy: str) -> None:
    if hasattr(os, policy):  # Linux
        with suppress(OSError):  # a sandbox may forbid it: it costs speed alone
            os.sched_setscheduler(0, getattr(os, policy), os.sched_param(0))
