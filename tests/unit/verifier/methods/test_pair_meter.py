"""What a drafter has done: counts that only grow, and averages of what it does now."""

from __future__ import annotations

import pytest

from verifier.methods.pair_meter import PairMeter


def timed(meter: PairMeter, rounds: int, **changes: float) -> None:
    """Rounds of 2 tokens in the time of one plain step, 40 ms, unless said otherwise."""
    facts = {"drafted": 3, "tokens": 2, "seconds": 0.040, "plain_s": 0.040, "now": 100.0} | changes
    for _ in range(rounds):
        meter.timed(**facts)  # type: ignore[arg-type]


def test_counts_and_acceptance() -> None:
    meter = PairMeter()
    assert (meter.acceptance, meter.gain) == (0.0, 0.0)
    for _ in range(100):
        meter.checked(4, 3)
    assert (meter.rounds, meter.drafted_tokens, meter.accepted_tokens) == (100, 400, 300)
    assert meter.acceptance == pytest.approx(0.75)
    for _ in range(200):
        meter.checked(4, 1)
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
    for tokens in (1, 4, 8) * 10:
        meter.answered(tokens, 0.010 + 0.002 * tokens)
    assert meter.cost.at(0) == pytest.approx(0.010)
    assert meter.cost.token_s == pytest.approx(0.002)
