"""Waiting for what other tasks and threads of a test bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], bool], most_s: float = 10.0) -> None:
    """Waits for something that is bound to happen."""
    deadline = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.005)
