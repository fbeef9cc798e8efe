"""Time by hand."""

from __future__ import annotations


class Clock:
    """A clock that goes on only where it is told to.

    Args:
        now: What it shows, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
