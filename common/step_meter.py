"""How many steps an engine takes, and how long they are."""

from __future__ import annotations

from common.telemetry.distribution import Distribution


class StepMeter:
    """Counts steps and averages their length.

    Args:
        lengths: Told of every step's, in seconds.
    """

    def __init__(self, lengths: Distribution) -> None:
        self._lengths = lengths
        self.steps = 0
        """Steps so far."""
        self.mean_ms = 0.0
        """Moving average of one step, in milliseconds."""

    def add(self, seconds: float, steps: int) -> None:
        """Counts steps that took so many seconds each."""
        ms = seconds * 1e3
        for _ in range(steps):
            self.steps += 1
            self.mean_ms = ms if self.steps == 1 else 0.95 * self.mean_ms + 0.05 * ms
            self._lengths.observe(seconds)
