"""What a drafter has done: counts that only grow, and averages of what it does now."""

from __future__ import annotations

import random

import pytest

from verifier.drafting.meter import PairMeter


def timed(meter: PairMeter, rounds: int, **changes: float) -> None:
    """Rounds of 2 tokens in the time of one plain step, 40 ms, unless said otherwise."""
    facts = {"drafted": 3, "tokens": 2, "seconds": 0.040, "plain_s": 0.040, "now": 100.0} | changes
    for _ in range(rounds):
        meter.timed(**facts)  # type: ignore[arg-type]


def test_counts_and_acceptance() -> None:
    meter = PairMeter()
    assert (meter.acceptance, meter.gain) == (0.0, 0.0)
    for _ in range(100):
        meter.checked(5, 4, 3)
    assert (meter.rounds, meter.drafted_tokens, meter.accepted_tokens) == (100, 500, 300)
    assert meter.acceptance == pytest.approx(0.75)
    for _ in range(200):
        meter.checked(4, 4, 1)
    assert meter.acceptance == pytest.approx(0.25, abs=0.01), "the recent ones count"


def test_a_gain_is_told_once_enough_drafts_are_timed() -> None:
    meter = PairMeter()
    timed(meter, 15)
    assert meter.gain == 0.0
    timed(meter, 1)
    assert meter.gain == pytest.approx(2.0)


def test_a_drafter_that_never_answers_has_a_gain_in_the_end() -> None:
    meter = PairMeter()
    timed(meter, 96, drafted=0, tokens=1, seconds=0.060)
    assert meter.gain == pytest.approx(2 / 3)


def test_waiting_costs() -> None:
    """Two tokens in three steps' time are less than plain steps would have given."""
    meter = PairMeter()
    timed(meter, 20, seconds=0.120)
    assert meter.gain == pytest.approx(2 / 3)


def test_news_after_a_long_time_outweighs_what_was() -> None:
    meter = PairMeter()
    timed(meter, 200, tokens=4)
    timed(meter, 5, tokens=1, now=1000.0)
    among_others = PairMeter()
    timed(among_others, 200, tokens=4)
    timed(among_others, 5, tokens=1)
    assert meter.gain < among_others.gain


def test_rounds_of_no_duration_are_left_out() -> None:
    meter = PairMeter()
    timed(meter, 50, seconds=0.0)
    timed(meter, 50, plain_s=0.0)
    assert meter.gain == 0.0


def test_answers_tell_the_way_and_the_token_apart_where_lengths_differ() -> None:
    meter = PairMeter()
    assert (meter.round_trip_s, meter.token_s) == (0.0, 0.0)
    meter.answered(4, 0.018)
    assert meter.token_s == pytest.approx(0.018 / 5)
    assert meter.round_trip_s == pytest.approx(0.018 / 5), "as long as a token, it is believed"
    for tokens in (1, 4, 8) * 100:
        meter.answered(tokens, 0.010 + 0.002 * tokens)
    assert meter.round_trip_s == pytest.approx(0.010, rel=0.05)
    assert meter.token_s == pytest.approx(0.002, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_vary_with_much_else_tell_the_two_apart_as_well(seed: int) -> None:
    """A token takes 0.25 ms, the way 5.7 ms on average: 1.5 to 50, as others keep it busy."""
    meter, chance = PairMeter(), random.Random(seed)
    for number in range(2000):
        tokens = chance.choice((2, 3, 4, 8, 8, 8))
        busy_s = chance.expovariate(1 / 0.003) + 0.040 * (chance.random() < 0.03)
        meter.answered(tokens, 0.0015 + busy_s + 0.00025 * tokens)
        if number > 300:
            assert 0.03e-3 < meter.token_s < 0.5e-3
            assert 3.5e-3 < meter.round_trip_s < 9e-3
