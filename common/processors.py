"""How many processors there are for this process."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def count() -> int:
    """How many this process may run on, or has the time of: a container's limit is one of time."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min([found or 1, *(math.ceil(limit) for limit in _limits())])


def _limits() -> Iterator[float]:
    """How many processors' time each of the control groups has that this process is in.

    They are where the system says, or, as within a container, right where they are mounted.
    """
    groups = ""
    with suppress(OSError):  # not Linux
        groups = _GROUPS.read_text(encoding="utf-8")
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = _MOUNT / "cpu" if controllers else _MOUNT
        names = Path(path).parts[1:]
        for depth in range(len(names) + 1):
            with suppress(OSError, ValueError):  # it is not there, or has no limit
                yield _limit(mount.joinpath(*names[:depth]))


def _limit(group: Path) -> float:
    """The limit of one control group, of version 2 or 1.

    Raises:
        OSError: It says none.
        ValueError: It has none.
    """
    if (group / "cpu.max").exists():
        quota, period = map(int, (group / "cpu.max").read_text(encoding="utf-8").split())
    else:
        names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
        quota, period = (int((group / name).read_text(encoding="utf-8")) for name in names)
    if quota <= 0:
        raise ValueError(quota)
    return quota / period
