"""How other threads reach the one that owns a model, and how long its steps take."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)

Note = Callable[[], None]
"""Something to be done on the engine's thread, between passes."""


class Inbox:
    """Notes to an engine; `post` and `wake` may be called from any thread."""

    def __init__(self) -> None:
        self._notes: deque[Note] = deque()
        self._wake = threading.Event()

    @property
    def backlog(self) -> int:
        """Notes that wait."""
        return len(self._notes)

    def post(self, *notes: Note) -> None:
        """Leaves notes and ends a `wait`."""
        self._notes.extend(notes)
        self._wake.set()

    def wake(self) -> None:
        """Ends a `wait`."""
        self._wake.set()

    def take(self) -> bool:
        """Does what the notes say that are here now; returns whether there were any."""
        count = len(self._notes)  # not those that arrive meanwhile: it could last
        for _ in range(count):
            note = self._notes.popleft()
            try:
                note()
            except Exception:  # a bug in one note must not end the thread that owns the model
                _log.exception("a note to the engine failed")
        return count > 0

    def wait(self, most_s: float) -> None:
        """Sleeps until there is a note, at most so many seconds."""
        if most_s > 0:
            self._wake.wait(most_s)
        self._wake.clear()


class StepMeter:
    """Counts steps and averages their length."""

    def __init__(self) -> None:
        self.steps = 0
        """Steps so far."""
        self.mean_ms = 0.0
        """Moving average of one step, in milliseconds."""

    def add(self, seconds: float) -> None:
        """Counts a step."""
        self.steps += 1
        ms = seconds * 1e3
        self.mean_ms = ms if self.steps == 1 else 0.95 * self.mean_ms + 0.05 * ms
