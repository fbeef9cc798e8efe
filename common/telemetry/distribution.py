"""A histogram of plain numbers: what runs often writes it, a scrape reads it.

Knows nothing of who reads, so that engines may use it. One thread writes; a reader on another may
miss the latest value, never more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for what takes half a millisecond up to some seconds."""


class Distribution:
    """How often a value fell where.

    Args:
        bounds: Upper ends of the buckets, rising; a last one without an end is added.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """Values in each bucket."""
        self.sum = 0.0
        """Of all values."""

    def observe(self, value: float) -> None:
        """Takes a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
