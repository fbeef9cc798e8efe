"""A worker whose engine computes nothing any more ends, for others to take over."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from paceline.v1 import worker_pb2

from common.errors import PacelineError
from common.rpc import server, worker_process
from tests.waiting import until
from verifier.config import VerifierConfig


class Engine:
    """Hangs in a pass, or breaks; it sleeps before, and is well until it drains if told so."""

    def __init__(self, *, broken: bool = False, in_drain: bool = False) -> None:
        self._broken = broken
        self._slept = False
        self._woken = threading.Event()
        self._fails = threading.Event()
        if not in_drain:
            self._fails.set()
        self.back = threading.Event()
        self.busy_since: float | None = None
        self.live = 0

    def step(self) -> bool:
        if not self._slept:
            return False
        self._fails.wait()
        if self._broken:
            raise RuntimeError("boom")
        self.busy_since = time.monotonic()
        self.back.wait(60)
        self.busy_since = None
        return False

    def wait(self, most_s: float = 0.5) -> None:
        if self._slept:  # for good, where nobody waits for its thread to end
            self._woken.wait()
        self._slept = True

    def wake(self) -> None:
        self._woken.set()

    def stop_accepting(self) -> None:
        self._fails.set()


async def _serve(engine: Engine, stall_s: float) -> None:
    await worker_process.serve(
        VerifierConfig(model="tiny", port=0, stall_s=stall_s, grace_s=60),
        engine,
        service="verifier",
        description=worker_pb2.DescribeResponse(),
        status=worker_pb2.WatchStatusResponse,
        register=lambda server: [],
        metrics=lambda: [],
    )


@pytest.fixture
def hanging() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.back.set()


async def test_a_pass_that_does_not_come_back_ends_the_process(hanging: Engine) -> None:
    with pytest.raises(PacelineError, match=r"a pass of the verifier did not come back in 0\.2 s"):
        await asyncio.wait_for(_serve(hanging, stall_s=0.2), timeout=30)


async def _until_ready(engine: Engine, stall_s: float) -> asyncio.Future[None]:
    ready = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "announce", lambda service, port: ready.set())
        serving = asyncio.ensure_future(_serve(engine, stall_s))
        await asyncio.wait_for(ready.wait(), timeout=30)
    return serving


@pytest.mark.parametrize("live", [0, 1])
async def test_nor_does_who_stops_the_process_wait_for_it(hanging: Engine, live: int) -> None:
    hanging.live = live
    serving = await _until_ready(hanging, stall_s=0.5)
    await until(lambda: hanging.busy_since is not None)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(PacelineError, match=r"a pass of the verifier did not come back in 0\.5 s"):
        await asyncio.wait_for(serving, timeout=30)


async def test_where_no_time_is_set_it_is_waited_for(hanging: Engine) -> None:
    serving = asyncio.ensure_future(_serve(hanging, stall_s=0))
    done, _ = await asyncio.wait({serving}, timeout=0.5)
    assert not done
    hanging.back.set()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_an_engine_that_breaks_ends_the_process() -> None:
    with pytest.raises(PacelineError, match="the verifier's engine died"):
        await asyncio.wait_for(_serve(Engine(broken=True), stall_s=0), timeout=30)


async def test_one_that_breaks_in_a_drain_ends_that_too() -> None:
    engine = Engine(broken=True, in_drain=True)
    engine.live = 1
    serving = await _until_ready(engine, stall_s=0)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(PacelineError, match="the verifier's engine died"):
        await asyncio.wait_for(serving, timeout=30)
