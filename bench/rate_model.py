"""What a round trip between verifier and drafter should cost, by the model of `common.rate_model`.

E and the round's time are measured without added delay, t_d and the way as it is at the drafter,
τ_v from plain decoding; h follows from those. What is said of any delay is prediction. The length
is chosen anew for each delay and each text, plain decoding included, as the verifier does: drafts
still pay for one text that have long ceased to pay for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.drafter_probe import Answering
from bench.step_times import Table, at
from common.rate_model import ahead_round_s, waiting_round_s


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What drafts of one length did without added delay."""

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

    def __post_init__(self) -> None:
        hits = {length: self._hit_share(length) for length in self.rounds}
        object.__setattr__(self, "hits", hits)

    def step_s(self, length: int) -> float:
        """Return the verifier's step with a draft of so many tokens, services included."""
        return self.plain_s * at(self.steps, length + 1) / at(self.steps, 1)

    def hit_s(self, length: int, round_trip_s: float) -> float:
        """Return the time of a round whose draft was made ahead."""
        way_s = round_trip_s + self.answering.way_s
        return ahead_round_s(self.step_s(length), way_s, self.answering.token_s, length)

    def miss_s(self, length: int, round_trip_s: float) -> float:
        """Return the time of a round whose draft was waited for."""
        way_s = round_trip_s + self.answering.way_s
        return waiting_round_s(self.step_s(length), way_s, self.answering.token_s, length)

    def tokens_per_s(self, round_trip_s: float) -> float:
        """Predict the rate with an added round trip and the best length for it."""
        rates = [
            rounds.committed / self._round_s(length, rounds, round_trip_s)
            for length, rounds in self.rounds.items()
        ]
        return max(1 / self.plain_s, *rates)

    def _round_s(self, length: int, rounds: Rounds, round_trip_s: float) -> float:
        """Return the measured round plus what the delay adds to hits and misses."""
        hits = self.hits[length]
        added_s = self.hit_s(length, round_trip_s) - self.hit_s(length, 0.0)
        return rounds.seconds + hits * added_s + (1 - hits) * round_trip_s

    def _hit_share(self, length: int) -> float:
        hit_s, miss_s = self.hit_s(length, 0.0), self.miss_s(length, 0.0)
        if miss_s <= hit_s:  # a drafter slower than its verifier: nothing comes ahead
            return 0.0
        return min(max((miss_s - self.rounds[length].seconds) / (miss_s - hit_s), 0.0), 1.0)


def predicted(texts: Sequence[tuple[int, Calibration]], round_trip_s: float) -> float:
    """Predict the tokens a second of texts, given as (tokens, what drafts did), one by one."""
    seconds = sum(tokens / text.tokens_per_s(round_trip_s) for tokens, text in texts)
    return sum(tokens for tokens, _ in texts) / seconds if seconds else 0.0
