"""What a drafter's engine has done since it started, in plain numbers.

The engine's thread counts; others read whenever they like.
"""

from __future__ import annotations

from common.telemetry.distribution import Distribution


class Totals:
    """Counts of one engine."""

    def __init__(self) -> None:
        self.steps = Distribution()
        """Seconds of a step."""
        self.branches = 0
        """Branches handed over."""
        self.opened = 0
        """Mirrors begun."""
        self.dropped = 0
        """Mirrors refused or given up."""
