"""Opening and cancelling, over and over, leaves gateway and verifier as they were."""

from __future__ import annotations

import asyncio
import gc
import threading
from itertools import pairwise

import psutil
import pytest
from paceline.v1 import inference_pb2

from common.model.runner import Runner
from tests.rpc.gateways import Gateway, gateway, ids_of
from tests.rpc.services import verifying
from tests.waiting import until

CYCLES, AT_ONCE = 200, 25
"""In a stretch."""
SESSIONS = 200
"""What is kept of a session is kept on purpose: after the first cycles there are no new ones."""
STRETCHES = 4
"""The first is for whatever is made once. What is lost each time is lost in every other one; an
allocator, or what tests before have left, may grow the process in one."""
MOST_OBJECTS = CYCLES // 2
"""That a stretch may add to what Python keeps: less than one of a cycle."""
MOST_GROWTH_BYTES = 3 << 19
"""And what is no object that Python's collector knows."""
MOST_TASKS = 30
"""By name: those of servers and watchers, and none of the cycles."""


async def cycle(target: Gateway, index: int) -> None:
    """Opens a generation and cancels it: at once, after it was accepted, or after some tokens."""
    request = inference_pb2.GenerateRequest(
        token_ids=ids_of(*range(5, 9 + index % 20)),
        max_tokens=200,
        ignore_eos=True,
        session_id=f"s{index % SESSIONS}" if index % 2 else "",
    )
    call = target.stub.Generate(request, timeout=60)
    for _ in range(index % 3):
        await call.read()
    call.cancel()


async def cycles(target: Gateway, count: int) -> None:
    for start in range(0, count, AT_ONCE):
        await asyncio.gather(*(cycle(target, start + index) for index in range(AT_ONCE)))


def names_of_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


def closed() -> bool:
    """Whether no more is to be collected: a generator of a cancelled call is closed by a task once
    it was, and leaves what it held."""
    return not gc.collect() and len(names_of_tasks()) < MOST_TASKS


@pytest.mark.timeout(600)
async def test_open_and_cancel_leaves_nothing_behind(target: Runner) -> None:
    process = psutil.Process()
    async with verifying(target) as verifier, gateway(verifier.address, max_concurrent=99) as door:

        async def settle() -> tuple[int, int, int, int]:
            await until(lambda: door.admission.running == 0)
            await verifier.empty()
            await until(closed)
            objects, size = len(gc.get_objects()), process.memory_info().rss
            return process.num_fds(), threading.active_count(), objects, size

        found = []
        for _ in range(STRETCHES):
            await cycles(door, CYCLES)
            found.append(await settle())
    files, threads, objects, sizes = zip(*found, strict=True)
    assert files[-1] <= files[0]
    assert threads[-1] <= threads[0]
    assert min(after - before for before, after in pairwise(objects)) < MOST_OBJECTS
    assert min(after - before for before, after in pairwise(sizes)) < MOST_GROWTH_BYTES
