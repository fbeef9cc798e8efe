"""Which sessions should be where: the best assignment to verifiers and drafters, by search.

What is searched is what `common.rate_model` says of the true costs of simulated workers, so that
placement, which has to measure them, can be compared with who knows them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from common.rate_model import COVERAGE, MOST_TOKENS, Pair, ahead_share, committed_tokens

Place = tuple[int, int]
"""A verifier and a drafter, by their numbers."""

_STARTS = 8
_ITERATIONS = 6
_LEAST_LEFT = 0.1
_SPREAD = (0.75, 0.875, 1.0, 1.125, 1.25)
"""Times that drafts take, over their mean."""


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
    that are drafted ahead for: these get the rest of its time. A session whose draft comes while
    its verifier runs a step for others waits for the end of that, too.

    Args:
        workers: The fleet.
        assigned: Sessions at each place.
    """
    sessions = {place: count for place, count in assigned.items() if count > 0}
    on_verifier: Counter[int] = Counter()
    for (verifier, _), count in sessions.items():
        on_verifier[verifier] += count
    pairs = {place: workers.pair(place, on_verifier[place[0]]) for place in sessions}
    rounds = _rounds(pairs, sessions)
    idle: dict[int, float] = {}
    for (verifier, drafter), count in sessions.items():
        waits = 1 - rounds[verifier, drafter].drafting
        idle[drafter] = idle.get(drafter, 1.0) * waits**count
    return Outcome(
        courses={
            place: Course(
                tokens_per_s=best.tokens_per_s,
                gain=best.tokens_per_s / pairs[place].tokens_per_s(0),
                length=best.length,
            )
            for place, best in rounds.items()
        },
        busy={drafter: 1 - share for drafter, share in idle.items()},
    )


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
    at_once: float = 1.0  # chance that the session's next step begins when this one ends


def _rounds(pairs: Mapping[Place, Pair], sessions: Mapping[Place, int]) -> dict[Place, _Round]:
    """Returns the rounds at each place, a fixed point: some sessions wait for their draft while
    others are drafted for, or are in a step."""
    taken, others = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0.0)
    rounds: dict[Place, _Round] = {}
    for _ in range(_ITERATIONS):
        rounds = {
            place: _best_round(pair, _coarse(taken[place]), _coarse(others[place]))
            for place, pair in pairs.items()
        }
        for place in pairs:
            taken[place] = (taken[place] + _taken(place, rounds, sessions)) / 2
            others[place] = (others[place] + _others(place, rounds, sessions)) / 2
    return rounds


def _taken(place: Place, rounds: Mapping[Place, _Round], sessions: Mapping[Place, int]) -> float:
    """Share of a drafter's time that goes to those of its other sessions that wait for it."""
    mine = [at for at in rounds if at[1] == place[1]]
    count = sum(sessions[at] for at in mine)
    waiting = min(sum(rounds[at].waited_for * sessions[at] for at in mine) / count, 1.0)
    return 1 - (1 - waiting) ** (count - 1)


def _others(place: Place, rounds: Mapping[Place, _Round], sessions: Mapping[Place, int]) -> float:
    """Chance that the verifier goes on with a step for other sessions when one ends."""
    mine = [at for at in rounds if at[0] == place[0]]
    return 1 - math.prod((1 - rounds[at].at_once) ** (sessions[at] - (at == place)) for at in mine)


def _coarse(share: float) -> float:
    """In steps of a twentieth, so that what was worked out is found again."""
    return round(20 * share) / 20


@lru_cache(maxsize=1 << 18)
def _best_round(pair: Pair, taken: float, others: float) -> _Round:
    """Returns the rounds of the best length.

    Args:
        pair: The verifier and the drafter.
        taken: Share of the drafter's time that goes to others that wait.
        others: Chance that the verifier goes on with a step for others when one ends.
    """
    best = _Round(pair.tokens_per_s(0))
    for length in range(1, MOST_TOKENS + 1):
        ahead = ahead_share(pair.acceptance, length, pair.coverage)
        slowed_s = pair.token_s / max(1 - taken, _LEAST_LEFT)
        foreseen_s = pair.round_trip_s + (length + 1) * slowed_s
        asked_s = pair.step_s + pair.round_trip_s + length * pair.token_s
        round_s = ahead * _round_s(pair.step_s, foreseen_s, others)
        round_s += (1 - ahead) * _round_s(pair.step_s, asked_s, others)
        rate = committed_tokens(pair.acceptance, length) / round_s
        if rate > best.tokens_per_s:
            waited_s = (1 - ahead) * length * pair.token_s
            share = min((waited_s + (length + 1) * pair.token_s) / round_s, 1.0)
            in_time = sum([foreseen_s * part <= pair.step_s for part in _SPREAD]) / len(_SPREAD)
            best = _Round(rate, length, waited_s / round_s, share, ahead * in_time)
    return best


def _round_s(step_s: float, draft_s: float, others: float) -> float:
    """Returns the mean duration of a round whose next draft is there `draft_s` after it began.

    Alone on its verifier a session is stepped as soon as it has its draft. Where steps for others
    follow each other it is when one of them ends; and what takes a little longer now and then
    misses a whole step.
    """
    steps = sum([max(math.ceil(draft_s * part / step_s), 1) for part in _SPREAD]) / len(_SPREAD)
    return others * steps * step_s + (1 - others) * max(draft_s, step_s)


def search(workers: Workers, sessions: int, seed: int = 0) -> Counter[Place]:
    """Finds the best assignment: from some starts, moves one session while that helps.

    Args:
        workers: The fleet.
        sessions: How many there are.
        seed: Of the starts.
    """
    source, places = random.Random(seed), workers.places
    known: dict[frozenset[tuple[Place, int]], float] = {}

    def rate(assigned: Counter[Place]) -> float:
        key = frozenset(assigned.items())
        if key not in known:
            known[key] = tokens_per_s(workers, assigned)
        return known[key]

    starts = [Counter(source.choices(places, k=sessions)) for _ in range(_STARTS)]
    return max((_climb(rate, places, start) for start in starts), key=rate)


def _climb(
    rate: Callable[[Counter[Place]], float], places: Sequence[Place], assigned: Counter[Place]
) -> Counter[Place]:
    while True:
        moved = max(_moves(assigned, places), key=rate)
        if rate(moved) <= rate(assigned) * (1 + 1e-9):
            return assigned
        assigned = moved


def _moves(assigned: Counter[Place], places: Sequence[Place]) -> Iterator[Counter[Place]]:
    for origin in assigned:
        for goal in places:
            moved = assigned.copy()
            moved[origin] -= 1
            moved[goal] += 1
            yield +moved
