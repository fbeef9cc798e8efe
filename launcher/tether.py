"""Runs a command that dies with the process that started it.

    python -I -S tether.py PARENT_PID COMMAND [ARGUMENT ...]

A process killed with SIGKILL cannot clean up, and its children live on. So each child asks the
kernel, before it becomes the command, to be killed when its parent goes. The request outlives
`exec`, so the command keeps this process's id and needs to know nothing of it. Standalone and
free of imports from Paceline: it runs before every service, in a few milliseconds.

Only Linux has such a request; elsewhere the command runs without it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Ask for SIGKILL when the parent dies, and exit if it is gone already.

    Args:
        parent: Process id of the parent. The kernel watches the *thread* of it that started us.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
