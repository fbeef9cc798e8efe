"""How fast a verifier and a drafter are together, by a model of one round.

A round checks a draft of γ tokens and commits E(γ) = (1 - α^(γ+1)) / (1 - α) of them on average,
with α the chance that a draft token is right where those before it were. Where the drafter has
drafted ahead for the round's outcome, with chance h, the next draft is there as soon as the
verifier is, or as soon as the drafter is; elsewhere the verifier waits for the way and the draft:

    X(γ) = E / [h · max(τ_v, R + τ_e) + (1 - h) (τ_v + R + γ t_d)]

with τ_v the verifier's step, t_d the drafter's step, τ_e = (γ + 1) t_d and R the round trip. A
draft broken off after some tokens was drafted for ahead with chance c, one that is right to its
end with chance α (the token after it is the drafter's own next choice): h = (1 - α^γ) c + α^γ α.
γ = 0 is plain decoding, 1 / τ_v.

Draft tokens are taken to be right or wrong independently of each other, and steps to cost the same
for any number of rows, the verifier's as well as the drafter's.
"""

from __future__ import annotations

from dataclasses import dataclass

COVERAGE = 0.6
"""Chance that the token after a broken draft was guessed, and its branch there in time."""

MOST_TOKENS = 8
"""Longest draft considered; the verifier's default."""

_HALVINGS = 40


def committed_tokens(acceptance: float, length: int) -> float:
    """Returns E: tokens that a round commits on average.

    Args:
        acceptance: Chance that a draft token is right where those before it were, 0 to 1.
        length: Draft tokens of a round.
    """
    return sum(acceptance**depth for depth in range(length + 1))


def acceptance_of(share: float, length: float) -> float:
    """Returns the acceptance with which drafts have a share of their tokens committed.

    A draft token after a wrong one is never committed, so the share is the smaller of the two.

    Args:
        share: Draft tokens committed over draft tokens checked, 0 to 1.
        length: Mean length of the drafts, at least 1.
    """
    low, high, whole = 0.0, 1.0, max(round(length), 1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if committed_tokens(middle, whole) - 1 < share * whole:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def ahead_share(acceptance: float, length: float, coverage: float = COVERAGE) -> float:
    """Returns h: the chance that the draft after a round was made before the round ended.

    Args:
        acceptance: As in `committed_tokens`.
        length: Draft tokens of a round, on average.
        coverage: Chance that the token after a broken draft was guessed; 0 where nothing is
            drafted ahead.
    """
    whole: float = acceptance**length
    return (1 - whole) * coverage + (whole * acceptance if coverage else 0.0)


def ahead_round_s(step_s: float, way_s: float, token_s: float, length: float) -> float:
    """Returns the seconds of a round after which the next draft is there, or on its way."""
    return max(step_s, way_s + (length + 1) * token_s)


def waiting_round_s(step_s: float, way_s: float, token_s: float, length: float) -> float:
    """Returns the seconds of a round after which the next draft has to be asked for."""
    return step_s + way_s + length * token_s


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A verifier and one of its drafters, for one of their sessions."""

    step_s: float
    """A step of the verifier, in seconds; as long without drafts as with any."""
    token_s: float
    """One draft token of the drafter, in seconds."""
    round_trip_s: float = 0.0
    """From an outcome told to the branch for it, less the drafting, in seconds."""
    acceptance: float
    """Chance that a draft token is right where those before it were, 0 to 1."""
    coverage: float = COVERAGE
    """Chance that the token after a broken draft was guessed; 0 where nothing is drafted ahead."""

    def round_s(self, length: int) -> float:
        """Returns the mean duration of a round; of a plain step where the length is 0."""
        if not length:
            return self.step_s
        ahead = ahead_share(self.acceptance, length, self.coverage)
        costs = self.step_s, self.round_trip_s, self.token_s
        ahead_s = ahead_round_s(*costs, length)
        return ahead * ahead_s + (1 - ahead) * waiting_round_s(*costs, length)

    def tokens_per_s(self, length: int) -> float:
        """Returns the rate of one session with drafts of one length."""
        return committed_tokens(self.acceptance, length) / self.round_s(length)

    def best_length(self) -> int:
        """Returns the draft length with the highest rate, 0 included; the shortest of equals."""
        return max(range(MOST_TOKENS + 1), key=self.tokens_per_s)

    def gain(self) -> float:
        """Returns the best rate over that of plain decoding; never below 1."""
        return self.tokens_per_s(self.best_length()) / self.tokens_per_s(0)

    def drafter_share(self, length: int) -> float:
        """Returns the share of the drafter's time that one session takes; over 1 it is too slow."""
        return (length + 1) * self.token_s / self.round_s(length) if length else 0.0
