"""Which sessions should be where: the best assignment to verifiers and drafters, by search.

What is searched is what `common.rate_model` says of the true costs of simulated workers, so that
placement, which has to measure them, can be compared with who knows them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from common.rate_model import (
    COVERAGE,
    Pair,
    ahead_round_s,
    ahead_share,
    committed_tokens,
    waiting_round_s,
)

Place = tuple[int, int]
"""A verifier and a drafter, by their numbers."""

_STARTS = 8
_ITERATIONS = 6
_LEAST_LEFT = 0.1


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """One verifier's true costs."""

    step_s: float
    """A step of one session, in seconds."""
    session_s: float = 0.0
    """What each further session adds to it, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """One drafter's true costs."""

    token_s: float
    """A draft token, in seconds."""
    acceptance: float
    """Chance that a draft token is right where those before it were."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """A fleet whose costs are known."""

    verifiers: tuple[Verifier, ...]
    """All of them."""
    drafters: tuple[Drafter, ...]
    """All of them."""
    round_trip_s: Mapping[Place, float] = field(default_factory=dict)
    """Between each pair, in seconds; 0 where it is left out."""
    coverage: float = COVERAGE
    """Chance that the token after a broken draft was guessed."""

    @property
    def places(self) -> list[Place]:
        """All pairs."""
        return [(v, d) for v in range(len(self.verifiers)) for d in range(len(self.drafters))]

    def pair(self, place: Place, sessions: int) -> Pair:
        """Returns the rate model of a pair with so many sessions on its verifier."""
        verifier, drafter = self.verifiers[place[0]], self.drafters[place[1]]
        return Pair(
            step_s=verifier.step_s + verifier.session_s * max(sessions - 1, 0),
            token_s=drafter.token_s,
            round_trip_s=self.round_trip_s.get(place, 0.0),
            acceptance=drafter.acceptance,
            coverage=self.coverage,
        )


@dataclass(frozen=True, kw_only=True)
class Course:
    """How sessions do at one place."""

    tokens_per_s: float
    """Of one of them."""
    gain: float
    """The same, over what plain steps of this batch would give."""
    length: int
    """Of their drafts."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an assignment does."""

    courses: Mapping[Place, Course]
    """By place, where there are sessions."""
    busy: Mapping[int, float]
    """Share of the time that a drafter with sessions computes, by its number."""


def outcome(workers: Workers, assigned: Mapping[Place, int]) -> Outcome:
    """Returns how an assignment does.

    A drafter's passes serve all its sessions, but one that waits for its draft goes before those
    that are drafted ahead for: these get the rest of its time.

    Args:
        workers: The fleet.
        assigned: Sessions at each place.
    """
    on_verifier: Counter[int] = Counter()
    for (verifier, _), sessions in assigned.items():
        on_verifier[verifier] += sessions
    places = [place for place, sessions in assigned.items() if sessions > 0]
    courses: dict[Place, Course] = {}
    busy: dict[int, float] = {}
    for drafter in {place[1] for place in places}:
        mine = [place for place in places if place[1] == drafter]
        pairs = [(workers.pair(place, on_verifier[place[0]]), assigned[place]) for place in mine]
        rounds = _rounds(pairs)
        idle = math.prod(
            (1 - best.drafting) ** count for best, (_, count) in zip(rounds, pairs, strict=True)
        )
        busy[drafter] = 1 - idle
        for place, best, (pair, _) in zip(mine, rounds, pairs, strict=True):
            courses[place] = Course(
                tokens_per_s=best.tokens_per_s,
                gain=best.tokens_per_s / pair.tokens_per_s(0),
                length=best.length,
            )
    return Outcome(courses=courses, busy=busy)


def tokens_per_s(workers: Workers, assigned: Mapping[Place, int]) -> float:
    """Returns the rate of all sessions together."""
    courses = outcome(workers, assigned).courses
    return sum(course.tokens_per_s * assigned[place] for place, course in courses.items())


@dataclass(frozen=True)
class _Round:
    tokens_per_s: float
    length: int = 0
    waited_for: float = 0.0  # share of the time in which the drafter is waited for
    drafting: float = 0.0  # share of the time in which it drafts, ahead or not


def _rounds(pairs: Sequence[tuple[Pair, int]]) -> list[_Round]:
    """Returns the rounds of one drafter's sessions, a fixed point: some wait while others are
    drafted for."""
    sessions = sum(count for _, count in pairs)
    taken, rounds = 0.0, []
    for _ in range(_ITERATIONS):
        rounds = [_best_round(pair, round(taken, 2)) for pair, _ in pairs]
        shares = [best.waited_for * count for best, (_, count) in zip(rounds, pairs, strict=True)]
        waiting = min(sum(shares) / sessions, 1.0)
        taken = (taken + 1 - (1 - waiting) ** (sessions - 1)) / 2
    return rounds


@lru_cache(maxsize=1 << 16)
def _best_round(pair: Pair, taken: float) -> _Round:
    """Returns the rounds of the best length, with a part of the drafter's time taken by others."""
    best = _Round(pair.tokens_per_s(0))
    for length in range(1, pair.most_tokens + 1):
        step_s = pair.verify_s(length)
        ahead = ahead_share(pair.acceptance, length, pair.coverage)
        slowed_s = pair.token_s / max(1 - taken, _LEAST_LEFT)
        round_s = ahead * ahead_round_s(step_s, pair.round_trip_s, slowed_s, length)
        round_s += (1 - ahead) * waiting_round_s(step_s, pair.round_trip_s, pair.token_s, length)
        rate = committed_tokens(pair.acceptance, length) / round_s
        if rate > best.tokens_per_s:
            waited_s = (1 - ahead) * length * pair.token_s
            drafting_s = waited_s + (length + 1) * pair.token_s
            share = min(drafting_s / round_s, 1.0)
            best = _Round(rate, length, waited_s / round_s, share)
    return best


def search(workers: Workers, sessions: int, seed: int = 0) -> Counter[Place]:
    """Finds the best assignment: from some starts, moves one session while that helps.

    Args:
        workers: The fleet.
        sessions: How many there are.
        seed: Of the starts.
    """
    source, places = random.Random(seed), workers.places
    starts = [Counter(source.choices(places, k=sessions)) for _ in range(_STARTS)]
    ends = [_climb(workers, start) for start in starts]
    return max(ends, key=lambda assigned: tokens_per_s(workers, assigned))


def _climb(workers: Workers, assigned: Counter[Place]) -> Counter[Place]:
    rate = tokens_per_s(workers, assigned)
    while True:
        moved = max(_moves(assigned, workers.places), key=lambda each: tokens_per_s(workers, each))
        if tokens_per_s(workers, moved) <= rate * (1 + 1e-9):
            return assigned
        assigned, rate = moved, tokens_per_s(workers, moved)


def _moves(assigned: Counter[Place], places: Sequence[Place]) -> Iterator[Counter[Place]]:
    for origin in assigned:
        for goal in places:
            moved = assigned.copy()
            moved[origin] -= 1
            moved[goal] += 1
            yield +moved
