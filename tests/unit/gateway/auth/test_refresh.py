"""What is read again as it ages waits for nothing else that runs on threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from gateway.auth.refresh import Refresh


async def test_it_reads_though_all_threads_of_the_event_loop_are_taken() -> None:
    loop, over, reads = asyncio.get_running_loop(), threading.Event(), []
    loop.set_default_executor(ThreadPoolExecutor(1))
    other = loop.run_in_executor(None, over.wait, 30)
    await Refresh(lambda: reads.append(threading.get_ident())).ensure(0, 10)
    assert len(reads) == 1
    assert not other.done()
    over.set()
    await other
