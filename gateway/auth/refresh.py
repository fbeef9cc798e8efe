"""What was read from outside is read again as it ages: off the event loop, once for all callers."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)


class Refresh:
    """Decides when to read again, and has a thread of its own do it. Used on one event loop.

    Args:
        read: Reads, on the thread; deals with its own failures.
        clock: Seconds that only grow.
    """

    def __init__(
        self, read: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        # Callers wait for it: it is not to wait for whatever else runs on threads.
        self._thread = ThreadPoolExecutor(1, "refresh")
        self._began_at = -math.inf
        self._task: asyncio.Task[None] | None = None

    async def ensure(self, most_age_s: float, patience_s: float) -> None:
        """Returns when the latest attempt to read is not older than that, and over.

        Args:
            most_age_s: Seconds since an attempt began after which there is another one.
            patience_s: Most seconds to wait; what is being read then counts later.
        """
        if self._task is None and self._clock() - self._began_at >= most_age_s:
            self._began_at = self._clock()
            self._task = asyncio.create_task(self._run())
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience_s)

    async def _run(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        except Exception:
            log.exception("reading again failed")
        finally:
            self._task = None
