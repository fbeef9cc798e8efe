"""What the launcher's tests share."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest


def is_running(pid: int) -> bool:
    """Whether a process lives; one that is dead and not yet reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], bool]:
    """Whether a condition comes true within a few seconds."""

    def wait(condition: Callable[[], object]) -> bool:
        deadline = time.monotonic() + 10
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
        return bool(condition())

    return wait


@pytest.fixture
def gone(eventually: Callable[[Callable[[], object]], bool]) -> Callable[[int], bool]:
    """Whether a process ends within a few seconds."""
    return lambda pid: eventually(lambda: not is_running(pid))
