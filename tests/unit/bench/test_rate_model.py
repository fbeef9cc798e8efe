from __future__ import annotations

from dataclasses import replace

import pytest

from bench.drafter_probe import Answering
from bench.rate_model import Calibration, Rounds, predicted
from common.rate_model import COVERAGE

STEPS = [(1, 0.002), (4, 0.002), (8, 0.004)]
ANSWERING = Answering(token_s=0.001, way_s=0.0005)


def calibration(seconds: float, length: int = 3, committed: float = 3.0) -> Calibration:
    return Calibration(
        plain_s=0.004,
        steps=STEPS,
        answering=ANSWERING,
        rounds={length: Rounds(drafted=length, committed=committed, seconds=seconds)},
    )


def test_a_round_that_waits_pays_for_the_way_and_the_draft() -> None:
    """Nothing accepted, so 0.6 drafted for ahead; the others: step 4 ms, way 0.5, draft 3 ms."""
    found = calibration(0.0, committed=1.0)
    assert found.hits[3] >= COVERAGE
    slow = calibration(0.6 * 0.0045 + 0.4 * 0.0075, committed=1.0)
    assert slow.hits[3] == pytest.approx(COVERAGE)
    assert slow.besides[3] == pytest.approx(0.0)
    assert slow.round_s(3, 0.0025) == pytest.approx(0.6 * 0.0070 + 0.4 * 0.0100)


def test_a_round_drafted_for_ahead_hides_the_way_while_the_step_lasts() -> None:
    """With one token, a step of 4 ms hides 2.5 ms of drafting and 1.5 ms of any round trip."""
    ahead = calibration(0.004, length=1, committed=1.8)
    assert ahead.hits[1] == pytest.approx(1.0)
    assert ahead.tokens_per_s(0.0015) == pytest.approx(1.8 / 0.004)
    assert ahead.tokens_per_s(0.0025) == pytest.approx(1.8 / 0.005)


def test_all_right_means_that_all_was_drafted_for_ahead() -> None:
    assert calibration(0.02, length=3, committed=4.0).hits[3] == pytest.approx(1.0)


def test_what_a_round_takes_besides_hides_the_way_too() -> None:
    """Steps of 4 ms of which one takes 6: a round trip of 3.5 ms costs those ahead nothing."""
    busy = calibration(0.006, length=1, committed=2.0)
    assert busy.besides[1] == pytest.approx(0.002)
    assert busy.tokens_per_s(0.0035) == pytest.approx(2 / 0.006)
    assert busy.tokens_per_s(0.0045) == pytest.approx(2 / 0.007)


def test_without_a_delay_it_says_what_was_measured() -> None:
    for seconds in (0.0050, 0.0060, 0.0075, 0.0100, 0.0300):
        for committed in (1.2, 2.0, 3.5):
            found = calibration(seconds, committed=committed)
            assert found.round_s(3, 0.0) == pytest.approx(seconds)


def test_more_rows_make_a_longer_step() -> None:
    assert calibration(0.0, length=7).step_s(7) == pytest.approx(0.008)


def test_a_draft_costs_what_it_had_and_not_what_it_might_have() -> None:
    """Of seven tokens five were drafted: six rows, of which four take 4 ms and eight 8."""
    rounds = Rounds(drafted=5, committed=1.0, seconds=0.0)
    model = Calibration(plain_s=0.004, steps=STEPS, answering=ANSWERING, rounds={7: rounds})
    assert model.step_s(5) == pytest.approx(0.006)
    slow = 0.6 * max(0.006, 0.0005 + 0.006) + 0.4 * (0.006 + 0.0005 + 0.005)
    found = replace(model, rounds={7: replace(rounds, seconds=slow)})
    assert found.hits[7] == pytest.approx(COVERAGE)
    assert found.round_s(7, 0.001) == pytest.approx(slow + 0.001)


def test_the_best_length_for_each_delay_and_none_where_nothing_pays() -> None:
    model = Calibration(
        plain_s=0.004,
        steps=STEPS,
        answering=ANSWERING,
        rounds={
            1: Rounds(drafted=1, committed=1.8, seconds=0.0055),
            3: Rounds(drafted=3, committed=2.6, seconds=0.0075),
        },
    )
    assert model.tokens_per_s(0.0) == pytest.approx(2.6 / 0.0075)
    assert model.tokens_per_s(0.1) == pytest.approx(1 / 0.004)
    rates = [model.tokens_per_s(delay_ms / 1e3) for delay_ms in range(20)]
    assert rates == sorted(rates, reverse=True)


def test_rounds_slower_than_plain_steps_are_not_chosen() -> None:
    assert calibration(0.020).tokens_per_s(0.0) == pytest.approx(1 / 0.004)


def test_a_drafter_slower_than_its_verifier() -> None:
    model = Calibration(
        plain_s=0.001,
        steps=STEPS,
        answering=Answering(token_s=0.01, way_s=0.0),
        rounds={3: Rounds(drafted=3, committed=3.0, seconds=0.05)},
    )
    assert model.round_s(3, 0.0) == pytest.approx(0.05)
    assert model.round_s(3, 0.01) > 0.05


def test_every_text_has_the_best_length_for_itself() -> None:
    """Drafts pay for one of two: its 300 tokens take 0.75 s, the other's 100 take 0.4 s."""
    texts = [(300, calibration(0.0075)), (100, calibration(0.0075, committed=1.1))]
    assert predicted(texts, 0.0) == pytest.approx(400 / (0.75 + 0.4))
    assert predicted([], 0.0) == 0.0
