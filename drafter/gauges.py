"""How busy a drafter is: how full its steps are, and how long new branches wait for theirs."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from common.fading_mean import FadingMean
from drafter.config import EngineConfig
from drafter.item import Item


@dataclass(frozen=True, kw_only=True)
class Load:
    """How busy the engine is."""

    sessions: int
    """Mirrors."""
    drafting: int
    """Mirrors with a branch in the making."""
    blocks_total: int
    """Cache blocks."""
    blocks_free: int
    """Blocks free or evictable."""
    step_ms: float
    """Moving average of one step, in milliseconds."""
    steps: int
    """Steps so far."""
    tokens: int
    """Tokens drafted so far."""
    stale: int
    """Commits dropped so far: of no mirror, or of another incarnation of it."""
    occupancy: float
    """Moving average of the share of a step in use, of its sessions or of its rows, whichever is
    more; 0 to 1."""
    draft_wait_ms: float
    """Moving average of the time a branch waits for its first pass, in milliseconds."""


class Gauges:
    """Moving averages over steps. The engine's thread adds; others may read.

    Args:
        config: Sizes.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.occupancy = FadingMean(weight=0.05)
        """Share of a step in use, of its sessions or of its rows, whichever is more; 0 to 1."""
        self.wait_s = FadingMean(weight=0.05)
        """From a round's arrival to the first pass for its branch, in seconds."""

    def stepping(self, batch: Seq[Item], sessions: int, now: float) -> None:
        """Takes note of a step that is about to run.

        Args:
            batch: What runs in it.
            sessions: Mirrors; those with nothing to compute are not in the batch.
            now: Seconds, of the monotonic clock.
        """
        rows = 0
        for item in batch:
            rows += item.rows
            told_at = item.mirror.told_at
            if told_at is not None:
                self.wait_s.add(now - told_at, now)
                item.mirror.told_at = None
        config = self._config
        share = max(sessions / config.max_sessions, rows / config.max_batch_tokens)
        self.occupancy.add(min(share, 1.0), now)
