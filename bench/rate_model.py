"""What a round trip between verifier and drafter should cost, by the model of `common.rate_model`.

E and the round's time are measured without added delay, t_d and the way as it is at the drafter,
τ_v from plain decoding; h follows from E. What a round takes beyond all that (the engine's own
work, messages, two services on one processor) is the verifier's, and a drafter that works ahead has
that time, too. A draft that is to have a length may end before, so γ is what rounds had on average.
What is said of any delay is prediction. The length is chosen anew for each delay and each text,
plain decoding included, as the verifier does: drafts still pay for one text that have long ceased
to pay for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.drafter_probe import Answering
from bench.step_times import Table
from common.rate_model import acceptance_of, ahead_round_s, ahead_share, waiting_round_s
from common.step_table import seconds_of

_HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What drafts of one length did without added delay."""

    drafted: float
    """Draft tokens a round, γ."""

    committed: float
    """Tokens a round, E."""

    seconds: float
    """Of a round."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All that was measured without added delay, of one text or of several together."""

    plain_s: float
    """Seconds a token of plain decoding."""

    steps: Table
    """The verifier's model alone: its step by rows."""

    answering: Answering
    """The drafter's answers."""

    rounds: Mapping[int, Rounds]
    """By draft length."""

    hits: Mapping[int, float] = field(init=False)
    """Share of rounds whose draft was made ahead, h, by draft length."""

    besides: Mapping[int, float] = field(init=False)
    """Seconds of a round that nothing else accounts for, by draft length."""

    def __post_init__(self) -> None:
        fitted = {length: self._fit(rounds) for length, rounds in self.rounds.items()}
        hits = {length: share for length, (share, _) in fitted.items()}
        besides = {length: seconds for length, (_, seconds) in fitted.items()}
        object.__setattr__(self, "hits", hits)
        object.__setattr__(self, "besides", besides)

    def step_s(self, drafted: float) -> float:
        """Return the verifier's step with a draft of so many tokens."""
        return self.plain_s * seconds_of(self.steps, 1 + drafted) / seconds_of(self.steps, 1)

    def round_s(self, length: int, round_trip_s: float) -> float:
        """Predict a round with an added round trip."""
        drafted = self.rounds[length].drafted
        return self._mean_s(drafted, self.hits[length], self.besides[length], round_trip_s)

    def tokens_per_s(self, round_trip_s: float) -> float:
        """Predict the rate with an added round trip and the best length for it."""
        rates = [
            rounds.committed / self.round_s(length, round_trip_s)
            for length, rounds in self.rounds.items()
        ]
        return max(1 / self.plain_s, *rates)

    def _mean_s(self, drafted: float, hits: float, besides: float, round_trip_s: float) -> float:
        """Return the mean of rounds whose draft was made ahead and of the others."""
        step_s, way_s = self.step_s(drafted) + besides, self.answering.way_s + round_trip_s
        token_s = self.answering.token_s
        ahead_s = ahead_round_s(step_s, way_s, token_s, drafted)
        return hits * ahead_s + (1 - hits) * waiting_round_s(step_s, way_s, token_s, drafted)

    def _fit(self, rounds: Rounds) -> tuple[float, float]:
        """Find h, and what rounds take besides.

        Where they are faster than can be with the h that follows from E, they take nothing
        besides, and more of them were drafted for ahead.
        """
        drafted = rounds.drafted
        share = max(rounds.committed - 1, 0.0) / drafted if drafted else 0.0
        hits = ahead_share(acceptance_of(min(share, 1.0), drafted), drafted)
        if self._mean_s(drafted, hits, 0.0, 0.0) < rounds.seconds:
            low, high = 0.0, rounds.seconds
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                faster = self._mean_s(drafted, hits, middle, 0.0) < rounds.seconds
                low, high = (middle, high) if faster else (low, middle)
            return hits, low
        waiting_s, ahead_s = (self._mean_s(drafted, share, 0.0, 0.0) for share in (0.0, 1.0))
        if waiting_s <= ahead_s:
            return hits, 0.0
        return min(max((waiting_s - rounds.seconds) / (waiting_s - ahead_s), hits), 1.0), 0.0


def predicted(texts: Sequence[tuple[int, Calibration]], round_trip_s: float) -> float:
    """Predict the tokens a second of texts, given as (tokens, what drafts did), one by one."""
    seconds = sum(tokens / text.tokens_per_s(round_trip_s) for tokens, text in texts)
    return sum(tokens for tokens, _ in texts) / seconds if seconds else 0.0
