"""What a verifier's engine has done since it started, in plain numbers.

The engine's thread counts; others read whenever they like.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.telemetry.distribution import Distribution


@dataclass
class Drafts:
    """What the drafts of one method came to."""

    drafts: int = 0
    """Rounds that checked one."""
    drafted_tokens: int = 0
    """Tokens checked."""
    accepted_tokens: int = 0
    """Tokens committed."""
    accepted_per_position: list[int] = field(default_factory=list)
    """Rounds in which the token at this depth was committed."""


class Totals:
    """Counts of one engine."""

    def __init__(self) -> None:
        self.sequences = 0
        """That have begun and not ended."""
        self.prompt_tokens = 0
        """Of prompts whose first token was committed."""
        self.cached_tokens = 0
        """Those of them that were in the cache already."""
        self.tokens = 0
        """Committed."""
        self.steps = Distribution()
        """Seconds of a step."""
        self.drafts: dict[str, Drafts] = {}
        """By method."""

    def prompt(self, tokens: int, cached: int) -> None:
        """Counts a prompt that has been computed."""
        self.prompt_tokens += tokens
        self.cached_tokens += cached

    def round(self, method: str, drafted: int, accepted: int) -> None:
        """Counts one target pass over one sequence.

        Args:
            method: What drafted.
            drafted: Draft tokens it checked.
            accepted: How many of them were committed.
        """
        if not drafted:
            return
        drafts = self.drafts.get(method) or self.drafts.setdefault(method, Drafts())
        drafts.drafts += 1
        drafts.drafted_tokens += drafted
        drafts.accepted_tokens += accepted
        positions = drafts.accepted_per_position
        positions.extend([0] * (accepted - len(positions)))
        for depth in range(accepted):
            positions[depth] += 1
