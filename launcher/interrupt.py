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
    with _handled(SIGNALS, _interrupt):
        yield


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

    with _handled((signal.SIGINT, *SIGNALS), note):
        yield lambda: told


@contextmanager
def _handled(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals inside, except those ignored when we started, as nohup has them."""
    heeded = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
