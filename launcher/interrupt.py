"""Being told to stop: SIGTERM and SIGHUP act as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_keyboard_interrupt() -> Iterator[None]:
    """Turn the signals into KeyboardInterrupt inside, so that context managers clean up."""
    before = {number: signal.signal(number, _interrupt) for number in _heeded(SIGNALS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """Let the signals, Ctrl-C among them, only leave a note inside; yield what tells of it.

    An exception may come in the middle of anything: in `subprocess` with its lock held, and
    whoever waits for that child then waits for ever.
    """
    told = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True

    heeded = _heeded((signal.SIGINT, *SIGNALS))
    before = {number: signal.signal(number, note) for number in heeded}
    try:
        yield lambda: told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    """Those that whoever started us has not had ignored, as nohup does."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
