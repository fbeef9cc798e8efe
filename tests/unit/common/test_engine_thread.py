"""The thread that owns a model: it ends when told to, and says so when its engine breaks."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from common.engine_thread import EngineThread, stalled


class Engine:
    """Sleeps until it is woken; breaks where it is told to."""

    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken
        self._wake = threading.Event()
        self.busy_since: float | None = None

    def step(self) -> bool:
        if self._broken:
            raise RuntimeError("boom")
        return False

    def wait(self, most_s: float = 60.0) -> None:
        self._wake.wait(most_s)

    def wake(self) -> None:
        self._wake.set()


def test_stopping_does_not_wait_for_the_sleep_to_end() -> None:
    died = threading.Event()
    thread = EngineThread(Engine(), "engine", died.set)
    thread.start()
    assert thread.stop()
    assert not thread.failed
    assert not died.is_set()


def test_a_pass_that_hangs_is_not_waited_for_without_end() -> None:
    engine = Engine()
    thread = EngineThread(engine, "engine", pytest.fail)
    engine.wake = lambda: None  # type: ignore[method-assign]
    thread.start()
    assert not thread.stop(0.05)
    Engine.wake(engine)
    assert thread.stop()


def test_an_engine_that_breaks_is_reported() -> None:
    died = threading.Event()
    thread = EngineThread(Engine(broken=True), "engine", died.set)
    thread.start()
    assert died.wait(10)
    thread.stop()
    assert thread.failed


class Looked(Engine):
    """Was in these passes whenever it was looked at."""

    def __init__(self, passes: Iterable[float | None]) -> None:
        self._passes = iter(passes)

    @property
    def busy_since(self) -> float | None:  # type: ignore[override]
        return next(self._passes)


@pytest.mark.parametrize("between", [None, 2.0])
async def test_an_engine_stalls_where_one_pass_takes_all_of_the_time(between: float | None) -> None:
    engine = Looked([1.0] * 15 + [between] * 15 + [3.0] * 21)
    await stalled(engine, 0.02)  # nothing is left to look at where it goes on
    with pytest.raises(RuntimeError):
        await stalled(engine, 0.02)
