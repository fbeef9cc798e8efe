"""How busy a verifier is: how full its steps are, and how long sequences wait for their first."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from common.fading_mean import FadingMean
from verifier.config import EngineConfig
from verifier.scheduler import Work


@dataclass(frozen=True, kw_only=True)
class Load:
    """How busy the engine is."""

    running: int
    """Sequences in the batch."""
    waiting: int
    """Sequences waiting for admission."""
    blocks_total: int
    """Cache blocks."""
    blocks_free: int
    """Blocks free or evictable."""
    step_ms: float
    """Moving average of one step, in milliseconds."""
    steps: int
    """Steps so far."""
    tokens: int
    """Tokens committed so far."""
    queue_wait_ms: float
    """Moving average from a sequence's arrival to its first step, in milliseconds; or what the one
    that waits longest has waited so far, where that is more."""
    occupancy: float
    """Moving average of the share of a step that is in use, from 0 to 1."""
    draft_wait_ms: float
    """Moving average of the time rounds wait for the drafts they asked for, in milliseconds."""
    plain_step_ms: float
    """What a step of the present batch would take without drafts, in milliseconds."""


class Gauges:
    """Moving averages over steps. The engine's thread adds; others may read.

    Args:
        config: Sizes.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.queue_wait_s = FadingMean(weight=0.2)
        """From a sequence's arrival to its first step, in seconds."""
        self.occupancy = FadingMean(weight=0.05)
        """Share of a step in use, of its sequences or of its rows, whichever is more; 0 to 1."""

    def stepping(self, batch: Seq[Work], running: int, now: float) -> None:
        """Takes note of a step that is about to run.

        Args:
            batch: What runs in it.
            running: Sequences admitted; those that wait for a draft are not in the batch.
            now: Seconds, of the monotonic clock.
        """
        rows = 0
        for work in batch:
            rows += work.batch_rows
            sequence = work.sequence
            if not sequence.stepped:
                sequence.stepped = True
                self.queue_wait_s.add(now - sequence.arrived_at, now)
        config = self._config
        share = max(running / config.max_running, rows / config.max_batch_tokens)
        self.occupancy.add(min(share, 1.0), now)
