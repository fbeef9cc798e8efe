"""The search for the best assignment finds it, and knows what costs what."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from bench.assignment import Drafter, Verifier, Workers, outcome, search, tokens_per_s


def fleet(seed: int, verifiers: int = 2, drafters: int = 3) -> Workers:
    source = random.Random(seed)
    return Workers(
        verifiers=tuple(
            Verifier(step_s=source.uniform(0.02, 0.1), session_s=source.uniform(0.0, 0.01))
            for _ in range(verifiers)
        ),
        drafters=tuple(
            Drafter(token_s=source.uniform(0.001, 0.03), acceptance=source.uniform(0.3, 0.95))
            for _ in range(drafters)
        ),
        round_trip_s={
            (v, d): source.uniform(0.0, 0.06) for v in range(verifiers) for d in range(drafters)
        },
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_what_trying_everything_finds(seed: int) -> None:
    workers = fleet(seed)
    everything = itertools.combinations_with_replacement(workers.places, 4)
    best = max(tokens_per_s(workers, Counter(places)) for places in everything)
    found = search(workers, 4)
    assert sum(found.values()) == 4
    assert tokens_per_s(workers, found) == pytest.approx(best, rel=0.01)


def test_one_session_is_as_fast_as_the_rate_model_says() -> None:
    workers = fleet(1)
    pair = workers.pair((0, 1), 1)
    alone = tokens_per_s(workers, Counter({(0, 1): 1}))
    assert alone == pytest.approx(pair.tokens_per_s(pair.best_length()))


def test_sessions_slow_each_other_down() -> None:
    workers = fleet(2)
    one, two, both = (
        tokens_per_s(workers, Counter(assigned))
        for assigned in ({(0, 0): 1}, {(0, 0): 2}, {(0, 0): 1, (1, 0): 1})
    )
    assert one < two < 2 * one
    assert both < one + tokens_per_s(workers, Counter({(1, 0): 1})) + 1e-9


def test_a_late_draft_waits_for_the_end_of_a_step_for_others() -> None:
    """Even where that step takes no longer than one of its own, and another drafter serves them."""
    fast = Drafter(token_s=0.001, acceptance=0.9)
    workers = Workers(
        verifiers=(Verifier(step_s=0.1),), drafters=(fast, fast), round_trip_s={(0, 0): 0.12}
    )
    alone = outcome(workers, {(0, 0): 1}).courses[0, 0]
    beside = outcome(workers, {(0, 0): 1, (0, 1): 1}).courses
    assert beside[0, 0].tokens_per_s < 0.9 * alone.tokens_per_s
    near = outcome(workers, {(0, 1): 1}).courses[0, 1]
    assert beside[0, 1].tokens_per_s > 0.9 * near.tokens_per_s
