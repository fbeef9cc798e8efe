"""The model of a round: against its formula by hand, its limits, and its directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.rate_model import (
    Pair,
    acceptance_of,
    ahead_round_s,
    ahead_share,
    committed_tokens,
    waiting_round_s,
)

SHARES = st.floats(0.0, 0.99)
LENGTHS = st.integers(1, 16)


def pair(**changes: float) -> Pair:
    costs = {"step_s": 0.030, "token_s": 0.003, "round_trip_s": 0.005, "acceptance": 0.75}
    return Pair(**(costs | changes))  # type: ignore[arg-type]


@given(SHARES, LENGTHS)
def test_committed_tokens_are_the_closed_form(acceptance: float, length: int) -> None:
    closed = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    assert committed_tokens(acceptance, length) == pytest.approx(closed)
    assert committed_tokens(1.0, length) == length + 1


@given(SHARES, LENGTHS)
def test_acceptance_is_found_again_from_the_share_of_tokens(acceptance: float, length: int) -> None:
    share = (committed_tokens(acceptance, length) - 1) / length
    assert acceptance_of(share, length) == pytest.approx(acceptance, abs=1e-6)


def test_ahead_share() -> None:
    assert ahead_share(0.5, 1, 0.6) == pytest.approx(0.5 * 0.6 + 0.5 * 0.5)
    assert ahead_share(1.0, 4, 0.6) == 1.0
    assert ahead_share(0.9, 4, 0.0) == 0.0, "nothing is drafted ahead"


def test_rounds_by_hand() -> None:
    assert ahead_round_s(0.030, 0.005, 0.003, 4) == pytest.approx(0.030)
    assert ahead_round_s(0.030, 0.020, 0.003, 4) == pytest.approx(0.035)
    assert waiting_round_s(0.030, 0.005, 0.003, 4) == pytest.approx(0.047)
    ahead = ahead_share(0.75, 4)
    assert pair().round_s(4) == pytest.approx(ahead * 0.030 + (1 - ahead) * 0.047)
    assert pair().round_s(0) == 0.030


def test_the_published_optimum_in_lockstep() -> None:
    """The lockstep row of the table for 30 ms steps, 3 ms draft tokens, 5 ms and 75 %: 66/s."""
    lockstep = pair(coverage=0.0)
    assert lockstep.tokens_per_s(lockstep.best_length()) == pytest.approx(66, abs=0.5)


def test_drafting_pays_nothing_where_drafts_are_never_right_or_too_late() -> None:
    assert pair(acceptance=0.0).best_length() == 0
    assert pair(round_trip_s=1.0).best_length() == 0
    assert pair(acceptance=0.0).gain() == 1.0


@given(
    acceptance=SHARES,
    token_s=st.floats(1e-4, 0.1),
    round_trip_s=st.floats(0.0, 0.2),
    more=st.floats(1.0, 3.0),
)
def test_worse_never_gains_more(
    acceptance: float, token_s: float, round_trip_s: float, more: float
) -> None:
    base = pair(acceptance=acceptance, token_s=token_s, round_trip_s=round_trip_s)
    slower = pair(acceptance=acceptance, token_s=token_s * more, round_trip_s=round_trip_s)
    farther = pair(acceptance=acceptance, token_s=token_s, round_trip_s=round_trip_s * more)
    assert base.gain() >= 1.0
    assert slower.gain() <= base.gain() * (1 + 1e-9)
    assert farther.gain() <= base.gain() * (1 + 1e-9)


def test_draft_work() -> None:
    """Five steps of 3 ms in each round."""
    assert pair().drafter_share(0) == 0.0
    assert pair().drafter_share(4) == pytest.approx(0.015 / pair().round_s(4))
