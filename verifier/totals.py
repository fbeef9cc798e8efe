"""What a verifier's engine has done since it started, in plain numbers.

The engine's thread counts; others read whenever they like.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from common.telemetry.distribution import Distribution


@dataclass
class Drafts:
    """What drafts came to."""

    rounds: int = 0
    """Target passes of one sequence."""
    drafted_tokens: int = 0
    """Draft tokens they checked."""
    accepted_tokens: int = 0
    """Draft tokens they committed."""
    accepted_per_position: list[int] = field(default_factory=list)
    """Rounds in which the draft token at this depth was committed."""

    def add(self, drafted: int, accepted: int) -> None:
        """Counts a round.

        Args:
            drafted: Draft tokens it checked.
            accepted: How many of them were committed.
        """
        self.rounds += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        positions = self.accepted_per_position
        while len(positions) < accepted:
            positions.append(0)
        for depth in range(accepted):
            positions[depth] += 1


TOGETHER_S = 0.1
"""In which texts that are asked for together come, one after the other."""


class Totals:
    """Counts of one engine."""

    def __init__(self) -> None:
        self.sequences = 0
        """That have begun and not ended."""
        self.starting = 0
        """Those of them whose prompt is still to be computed, for the first time."""
        self.idle_s = 0.0
        """Seconds in which there were none, before those that there are."""
        self.busy_since = self._idle_since = time.monotonic()
        """When the first of those came, by the monotonic clock."""
        self.together = self.together_before = 0
        """That came at once with that one, and with the one that came before it like this."""
        self.prompt_tokens = 0
        """Of prompts whose first token was committed."""
        self.cached_tokens = 0
        """Those of them that were in the cache already."""
        self.tokens = 0
        """Committed."""
        self.steps = Distribution()
        """Seconds of a step."""
        self.drafts: dict[str, Drafts] = {}
        """Of rounds that checked any, by method."""

    def begin(self, arrived_at: float) -> None:
        """Counts a sequence that begins.

        Args:
            arrived_at: When it came, by the monotonic clock.
        """
        if not self.sequences:
            self.idle_s += time.monotonic() - self._idle_since
            self.busy_since = arrived_at
            self.together, self.together_before = 0, self.together
        self.together += arrived_at < self.busy_since + TOGETHER_S
        self.sequences += 1
        self.starting += 1

    def end(self, *, started: bool) -> None:
        """Counts one that began and is over.

        Args:
            started: Whether its prompt was computed.
        """
        self.sequences -= 1
        self.starting -= not started
        if not self.sequences:
            self._idle_since = time.monotonic()

    def prompt(self, tokens: int, cached: int) -> None:
        """Counts a prompt that has been computed."""
        self.starting -= 1
        self.prompt_tokens += tokens
        self.cached_tokens += cached

    def round(self, method: str, drafted: int, accepted: int) -> None:
        """Counts one target pass over one sequence.

        Args:
            method: What drafted.
            drafted: Draft tokens it checked.
            accepted: How many of them were committed.
        """
        if drafted:
            drafts = self.drafts.get(method) or self.drafts.setdefault(method, Drafts())
            drafts.add(drafted, accepted)
