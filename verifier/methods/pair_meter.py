"""What one drafter has done for this verifier: counts, acceptance, and what was gained by it."""

from __future__ import annotations

from verifier.methods.draft_length import CostLine

_FORGET = 0.97
_FORGET_ANSWERS = 0.98
_LEAST_DRAFTS = 16
"""Rounds with a draft before a gain is told."""

_LEAST_ROUNDS = 96
"""Rounds, with a draft or without, before it is told all the same: none ever comes in time."""

_OLD_S = 30.0
_OLD_WEIGHT = 0.2
"""What was measured so long ago counts so much once there is news."""


class PairMeter:
    """Counts rounds of all sessions that a drafter mirrors. Used on the engine's thread.

    The gain compares each round with what plain steps would have given in its time. In plain
    decoding a round is one step, which commits one token and would have taken as long as this
    round's step did, less its draft rows. What is left of the time went into waiting for the draft.
    """

    def __init__(self) -> None:
        self.sessions = 0
        """Sessions mirrored now."""
        self.rounds = 0
        """Rounds that checked a draft."""
        self.drafted_tokens = 0
        """Draft tokens checked."""
        self.accepted_tokens = 0
        """Draft tokens committed."""
        self._drafted = self._accepted = 0.0  # lately
        self._committed = self._plain = 0.0  # tokens lately: what was, and plainly would have been
        self._timed_rounds = self._timed_drafts = 0
        self._timed_at = 0.0
        self.cost = CostLine(_FORGET_ANSWERS)
        """Seconds from an outcome told to the branch for it, by tokens drafted."""

    @property
    def acceptance(self) -> float:
        """Share of recent draft tokens that were committed; 0 while there are none."""
        return self._accepted / self._drafted if self._drafted else 0.0

    @property
    def gain(self) -> float:
        """Recent tokens over those of plain steps in the same time; 0 while too few are known."""
        known = self._timed_drafts >= _LEAST_DRAFTS or self._timed_rounds >= _LEAST_ROUNDS
        return self._committed / self._plain if known else 0.0

    def answered(self, tokens: int, seconds: float) -> None:
        """Takes a branch that was asked for.

        Args:
            tokens: Its length.
            seconds: From the outcome told to its arrival.
        """
        self.cost.add(tokens, max(seconds, 0.0))

    def checked(self, drafted: int, accepted: int) -> None:
        """Takes a round that checked a draft.

        Args:
            drafted: Its tokens.
            accepted: How many were committed.
        """
        self.rounds += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self._drafted = _FORGET * self._drafted + drafted
        self._accepted = _FORGET * self._accepted + accepted

    def timed(
        self, *, drafted: int, tokens: int, seconds: float, plain_s: float, now: float
    ) -> None:
        """Takes a round of a session whose draft length is left to the verifier.

        Args:
            drafted: Draft tokens it checked.
            tokens: Committed by it.
            seconds: From the end of the round before to its own.
            plain_s: What its step would have taken without a draft.
            now: Seconds, of the monotonic clock.
        """
        if plain_s <= 0 or seconds <= 0:
            return
        forget = _FORGET if now - self._timed_at < _OLD_S else _OLD_WEIGHT
        self._timed_rounds, self._timed_at = self._timed_rounds + 1, now
        self._timed_drafts += drafted > 0
        self._committed = forget * self._committed + tokens
        self._plain = forget * self._plain + seconds / plain_s
