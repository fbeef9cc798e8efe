"""The thread that owns a model: it ends when told to, and says so when its engine breaks."""

from __future__ import annotations

import threading

from common.engine_thread import EngineThread


class Engine:
    """Sleeps until it is woken; breaks where it is told to."""

    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken
        self._wake = threading.Event()

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
    thread.stop()
    assert not thread.failed
    assert not died.is_set()


def test_an_engine_that_breaks_is_reported() -> None:
    died = threading.Event()
    thread = EngineThread(Engine(broken=True), "engine", died.set)
    thread.start()
    assert died.wait(10)
    thread.stop()
    assert thread.failed
