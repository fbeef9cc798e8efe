from __future__ import annotations

import pytest

from bench.drafter_probe import Answering
from bench.rate_model import Calibration, Rounds, predicted

STEPS = [(1, 0.002), (4, 0.002), (8, 0.004)]
ANSWERING = Answering(token_s=0.001, way_s=0.0005)


def calibration(seconds: float, length: int = 3, committed: float = 3.0) -> Calibration:
    return Calibration(
        plain_s=0.004,
        steps=STEPS,
        answering=ANSWERING,
        rounds={length: Rounds(committed=committed, seconds=seconds)},
    )


def test_a_round_that_waits_pays_for_the_way_and_the_draft() -> None:
    """Step 4 ms, way 0.5 ms and three tokens of 1 ms: lockstep."""
    lockstep = calibration(0.0075)
    assert lockstep.hits[3] == pytest.approx(0.0)
    assert lockstep.tokens_per_s(0.0) == pytest.approx(3 / 0.0075)
    assert lockstep.tokens_per_s(0.0025) == pytest.approx(3 / 0.0100)


def test_a_round_drafted_for_ahead_hides_the_way_while_the_step_lasts() -> None:
    """With one token, a step of 4 ms hides 2.5 ms of drafting and 1.5 ms of any round trip."""
    ahead = calibration(0.004, length=1, committed=1.8)
    assert ahead.hits[1] == pytest.approx(1.0)
    assert ahead.tokens_per_s(0.0015) == pytest.approx(1.8 / 0.004)
    assert ahead.tokens_per_s(0.0025) == pytest.approx(1.8 / 0.005)


def test_some_rounds_of_either_kind() -> None:
    half = calibration((0.004 + 0.0055) / 2, length=1)
    assert half.hits[1] == pytest.approx(0.5)
    assert half.tokens_per_s(0.001) == pytest.approx(3 / (0.5 * 0.004 + 0.5 * 0.0065))


def test_more_rows_make_a_longer_step() -> None:
    assert calibration(0.0, length=7).step_s(7) == pytest.approx(0.008)


def test_the_best_length_for_each_delay_and_none_where_nothing_pays() -> None:
    model = Calibration(
        plain_s=0.004,
        steps=STEPS,
        answering=ANSWERING,
        rounds={
            1: Rounds(committed=1.8, seconds=0.0055),
            3: Rounds(committed=2.6, seconds=0.0075),
        },
    )
    assert model.tokens_per_s(0.0) == pytest.approx(2.6 / 0.0075)
    assert model.tokens_per_s(0.1) == pytest.approx(1 / 0.004)
    rates = [model.tokens_per_s(delay_ms / 1e3) for delay_ms in range(20)]
    assert rates == sorted(rates, reverse=True)


def test_overheads_the_model_does_not_know_stay_in() -> None:
    slow = calibration(0.020)
    assert slow.hits[3] == 0.0
    assert slow.tokens_per_s(0.0) == pytest.approx(1 / 0.004)  # plain is faster


def test_a_drafter_slower_than_its_verifier_comes_never_ahead() -> None:
    model = Calibration(
        plain_s=0.001,
        steps=STEPS,
        answering=Answering(token_s=0.01, way_s=0.0),
        rounds={3: Rounds(committed=3.0, seconds=0.03)},
    )
    assert model.hits[3] == 0.0


def test_every_text_has_the_best_length_for_itself() -> None:
    """Drafts pay for one of two: its 300 tokens take 0.75 s, the other's 100 take 0.4 s."""
    texts = [(300, calibration(0.0075)), (100, calibration(0.0075, committed=1.1))]
    assert predicted(texts, 0.0) == pytest.approx(400 / (0.75 + 0.4))
    assert predicted([], 0.0) == 0.0
