"""What one drafter has done for this verifier: counts, acceptance, and what was gained by it."""

from __future__ import annotations

_FORGET = 0.97
_FORGET_ANSWERS = 0.98
_FORGET_LENGTHS = 0.998
_FAR = 4.0
"""An answer that took more than so many times the mean counts for its length as if it had not."""

_BELIEF = 25.0
"""Squared tokens from the mean length that outweigh the belief that a token takes as long as the
way."""

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
        self._tested = self._accepted = 0.0  # lately
        self._committed = self._plain = 0.0  # tokens lately: what was, and plainly would have been
        self._timed_rounds = self._timed_drafts = 0
        self._timed_at = 0.0
        self._answers = self._tokens = self._seconds = 0.0  # lately
        self._by_length = self._lengths = 0.0  # seconds times tokens, and tokens squared, off means

    @property
    def acceptance(self) -> float:
        """Share of recent draft tokens that were committed, but for those behind a text's end; 0
        while there are none."""
        return self._accepted / self._tested if self._tested else 0.0

    @property
    def gain(self) -> float:
        """Recent tokens over those of plain steps in the same time; 0 while too few are known."""
        known = self._timed_drafts >= _LEAST_DRAFTS or self._timed_rounds >= _LEAST_ROUNDS
        return self._committed / self._plain if known else 0.0

    @property
    def token_s(self) -> float:
        """What each token adds to an answer, in seconds; 0 before the first."""
        if not self._answers:
            return 0.0
        believed = self._seconds / (self._tokens + self._answers)
        seen = (self._by_length + _BELIEF * believed) / (self._lengths + _BELIEF)
        return min(max(seen, 0.0), self._seconds / max(self._tokens, self._answers))

    @property
    def round_trip_s(self) -> float:
        """What the rest of an answer takes, in seconds; 0 before the first."""
        if not self._answers:
            return 0.0
        return max(self._seconds - self._tokens * self.token_s, 0.0) / self._answers

    def answered(self, tokens: int, seconds: float) -> None:
        """Takes a branch that was asked for.

        What an answer takes varies with much else, more than with its length. So what a token adds
        is of many answers, each against the mean of its time.

        Args:
            tokens: Its length.
            seconds: From the outcome told to its arrival.
        """
        if self._answers:
            longer = tokens - self._tokens / self._answers
            mean_s = self._seconds / self._answers
            later_s = min(seconds, _FAR * mean_s) - mean_s
            self._by_length = _FORGET_LENGTHS * self._by_length + longer * later_s
            self._lengths = _FORGET_LENGTHS * self._lengths + longer * longer
        self._answers = _FORGET_ANSWERS * self._answers + 1
        self._tokens = _FORGET_ANSWERS * self._tokens + tokens
        self._seconds = _FORGET_ANSWERS * self._seconds + seconds

    def checked(self, drafted: int, tested: int, accepted: int) -> None:
        """Takes a round that checked a draft.

        Args:
            drafted: Its tokens.
            tested: Those up to the text's end; all where that is not among them.
            accepted: How many were committed.
        """
        self.rounds += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self._tested = _FORGET * self._tested + tested
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
