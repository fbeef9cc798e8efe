"""Tasks that nobody waits for where they are started."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Tasks:
    """Those of one owner, on one event loop, which by itself does not keep tasks alive.

    Its length is the number of those that still run.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Starts one; called on the event loop."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self, *, cancel: bool = False) -> None:
        """Waits until all have ended, however they do.

        Args:
            cancel: Whether they are cancelled first.
        """
        if cancel:
            for task in self._running:
                task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
