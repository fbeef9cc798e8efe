"""The one thread that owns a model: it steps the engine, and sleeps where nothing is to be done."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)

_LOOKS = 20
"""Looks at an engine within the time that a pass may take. They are counted, and not the time: a
process that was stopped for a while goes on with the pass it was in."""


class Steppable(Protocol):
    """An engine, as its thread sees it."""

    def step(self) -> bool:
        """Runs one batch; False where nothing was ready."""

    def wait(self, most_s: float = ...) -> None:
        """Sleeps until something may be ready."""

    def wake(self) -> None:
        """Ends the sleep."""

    @property
    def busy_since(self) -> float | None:
        """When the pass began that it is in, by the monotonic clock; None where it sleeps."""


class EngineThread(threading.Thread):
    """Steps an engine until `stop`.

    Args:
        engine: Nobody else may step it.
        name: Of the thread.
        on_death: Called on the thread where the engine raised; it is not stepped again.
    """

    def __init__(self, engine: Steppable, name: str, on_death: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._engine = engine
        self._on_death = on_death
        self._stopping = threading.Event()
        self.failed = False
        """Whether the engine raised."""

    def run(self) -> None:
        """The thread's body."""
        try:
            while not self._stopping.is_set():
                if not self._engine.step() and not self._stopping.is_set():
                    self._engine.wait()
        except Exception:
            # Engines survive a bad batch by themselves: what comes here is a bug, and a worker
            # that looks well but computes nothing is worse than one that is gone.
            _log.exception("engine died")
            self.failed = True
            self._on_death()

    def stop(self, most_s: float | None = None) -> bool:
        """Ends the thread after the step it is in, and waits for that.

        Args:
            most_s: Seconds to wait; None for as long as it takes.

        Returns:
            Whether it has ended.
        """
        self._stopping.set()
        self._engine.wake()
        self.join(most_s)
        return not self.is_alive()


async def stalled(engine: Steppable, most_s: float) -> None:
    """Returns where an engine does not come back from a pass: a driver that hangs raises nothing.

    Args:
        engine: Stepped by its thread.
        most_s: Seconds that a pass may take.
    """
    same, since = 0, None
    while same < _LOOKS:
        await asyncio.sleep(most_s / _LOOKS)
        began = engine.busy_since
        same = same + 1 if began is not None and began == since else 0
        since = began
