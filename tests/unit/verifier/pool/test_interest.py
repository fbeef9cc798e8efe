"""Texts are looked up as often as that pays."""

from __future__ import annotations

import pytest

from tests.clock import Clock
from verifier.cost import StepCost
from verifier.pool.forecast import Forecast
from verifier.pool.interest import Interest, Interests

LOOK_S = 50e-6
STEP_S = 1e-3


def _looks(expected: list[float], sequences: int = 1) -> list[bool]:
    """Which rounds look, where a look would find so much; others run in the same steps."""
    cost, clock = StepCost(((1, STEP_S), (64, STEP_S))), Clock()
    for _ in range(200):
        cost.observe(rows=sequences, sequences=sequences, tokens=sequences, seconds=STEP_S)
    interest, found = Interest(Interests(cost, clock)), []
    for tokens in expected:

        def find(tokens: float = tokens) -> Forecast:
            clock.now += LOOK_S
            return Forecast(chances=[tokens], worth=1)

        found.append(interest.look(find) is not None)
        assert interest.look(find) is interest.forecast, "once a round"
        interest.end_round()
    return found


def test_what_indexing_takes_says_nothing_of_looks() -> None:
    """A prompt of several rounds' indexing, a second each, and then a look like any other."""
    cost, clock = StepCost(((1, STEP_S), (64, STEP_S))), Clock()
    interests = Interests(cost, clock)
    interest = Interest(interests)

    def index() -> None:
        clock.now += 1.0

    for _ in range(5):
        assert interest.look(index) is None
        interest.end_round()
    assert interests.seconds == 0.0
    assert interest.look(Forecast) is not None


def test_what_finds_nothing_is_looked_up_now_and_then() -> None:
    looks = _looks([0.0] * 1000)
    assert all(looks[:10])
    assert 0.1 < sum(looks[500:]) / 500 < 0.15


def test_a_text_that_begins_to_repeat_itself_is_followed_from_the_next_look_on() -> None:
    looks = _looks([0.0] * 500 + [2.0] * 100)
    assert all(looks[510:])


@pytest.mark.parametrize(("sequences", "share"), [(1, 1.0), (16, 0.1)])
def test_little_pays_for_one_alone_and_not_beside_others(sequences: int, share: float) -> None:
    looks = _looks([0.3] * 1000, sequences)
    assert sum(looks[500:]) / 500 == pytest.approx(share, abs=0.05)


def test_a_rest_ends_where_rounds_were_missed() -> None:
    """A hybrid that does not ask has rested for it."""
    clock = Clock()
    interest = Interest(Interests(StepCost(((1, STEP_S), (64, STEP_S))), clock))

    def find() -> Forecast:
        clock.now += LOOK_S
        return Forecast()

    while interest.look(find) is not None:
        interest.end_round()
    interest.end_round(missed=True)
    assert interest.look(find) is not None
