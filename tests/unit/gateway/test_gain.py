"""What a drafter is worth: measured, predicted, shared, left out, tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.rate_model import Pair
from gateway.candidate import Candidate
from gateway.gain import PRIOR_GAIN, REPROBE_S, Gains, Worth, forgotten, ranked, untried
from tests.unit.gateway.candidates import drafter, measured, verifier


def worths(one: Candidate, *drafters: Candidate, others: tuple[Candidate, ...] = ()) -> list[Worth]:
    return Gains([one, *others], drafters).worths(one, drafters)


def order(one: Candidate, *drafters: Candidate) -> list[str]:
    return [worth.drafter.address for worth in ranked(worths(one, *drafters))]


def test_measured_gain_decides() -> None:
    one = verifier(pairs={"a": measured(1.3), "b": measured(2.5), "c": measured(1.8)})
    assert order(one, drafter("a"), drafter("b"), drafter("c")) == ["b", "c", "a"]


def test_an_unmeasured_pair_is_predicted_by_the_rate_model() -> None:
    found = worths(verifier(), drafter("a"))[0]
    model = Pair(step_s=0.030, token_s=0.003, acceptance=0.7)
    assert not found.measured
    assert found.gain == pytest.approx(model.gain())
    assert found.capacity == pytest.approx(1 / model.drafter_share(model.best_length()))


def test_a_faster_drafter_is_predicted_to_gain_more() -> None:
    assert order(verifier(), drafter("slow", step_ms=12), drafter("fast")) == ["fast", "slow"]


def test_acceptance_is_taken_from_the_same_models_elsewhere() -> None:
    poor = verifier("w", pairs={"a": measured(1.1, acceptance=0.3)})
    found = worths(verifier(), drafter("b"), drafter("a"), others=(poor,))[0]
    assert found.gain == pytest.approx(Pair(step_s=0.030, token_s=0.003, acceptance=0.3).gain())


def test_the_way_is_taken_from_the_drafter_elsewhere() -> None:
    far = verifier("w", pairs={"a": measured(1.5, round_trip_ms=40.0)})
    near, known = worths(verifier(), drafter("b"), drafter("a"), others=(far,))
    assert known.gain < near.gain


def test_where_no_step_is_known_a_prior_is_assumed() -> None:
    assert worths(verifier(step_ms=0.0), drafter("a"))[0].gain == PRIOR_GAIN
    assert worths(verifier(), drafter("a", step_ms=0.0))[0].gain == PRIOR_GAIN


def test_few_rounds_count_little_and_many_all() -> None:
    def expected(rounds: int) -> float:
        return worths(verifier(pairs={"a": measured(1.1, rounds)}), drafter("a"))[0].gain

    assert expected(16) > expected(64) > expected(1000) > 1.1
    assert expected(1000) == pytest.approx(1.1, abs=0.15)


def test_old_measures_give_way_to_prediction() -> None:
    def expected(quiet_s: float) -> float:
        pair = measured(1.0, quiet_s=quiet_s)
        return worths(verifier(pairs={"a": pair}), drafter("a"))[0].gain

    fresh, old, ancient = expected(0), expected(4 * REPROBE_S), expected(100 * REPROBE_S)
    assert fresh < old < ancient
    assert ancient == pytest.approx(Pair(step_s=0.030, token_s=0.003, acceptance=0.8).gain(), 0.1)


def test_predictions_are_scaled_by_what_this_verifier_gets_of_them() -> None:
    """Where well-known pairs fall short of the model, the others will, too."""
    hopeful = worths(verifier(), drafter("b"))[0].gain
    busy = verifier(pairs={"a": measured(1.2, acceptance=0.7)})
    sober = worths(busy, drafter("b"), drafter("a"))[0].gain
    assert 1.0 < sober < 0.6 * hopeful


def test_what_brings_next_to_nothing_is_left_out() -> None:
    one = verifier(
        pairs={"good": measured(3.0), "fair": measured(1.6), "slow": measured(0.9, acceptance=0.2)}
    )
    assert order(one, drafter("good"), drafter("fair"), drafter("slow", step_ms=40)) == [
        "good",
        "fair",
    ]


def test_a_drafter_that_never_answers_is_left_out() -> None:
    silent = measured(0.8, rounds=0, drafted_tokens=0, length=0.0, acceptance=0.0)
    one = verifier(pairs={"good": measured(3.0), "silent": silent})
    kept = ranked(worths(one, drafter("good"), drafter("silent", step_ms=40.0)))
    assert [worth.drafter.address for worth in kept] == ["good"]


def test_a_lone_drafter_that_slows_down_is_left_out() -> None:
    assert order(verifier(pairs={"a": measured(0.8, acceptance=0.1)}), drafter("a")) == []


def test_a_full_drafter_comes_after_one_with_time_left() -> None:
    """With 30 ms steps a session of six draft tokens takes about half of a drafter of 3 ms."""
    one = verifier(pairs={"a": measured(2.5), "b": measured(2.0)})
    assert order(one, drafter("a"), drafter("b")) == ["a", "b"]
    assert order(one, drafter("a", running=9), drafter("b")) == ["b", "a"]
    assert order(one, drafter("a", in_flight=9), drafter("b")) == ["b", "a"], "reports lag"


def test_sessions_that_share_passes_leave_room_for_more() -> None:
    one = verifier(pairs={"a": measured(2.5), "b": measured(2.0)})
    shared = drafter("a", running=9, busy=0.3)
    assert order(one, shared, drafter("b")) == ["a", "b"]


def test_among_full_ones_those_with_fewer_sessions_come_first() -> None:
    one = verifier(pairs={"a": measured(2.0), "b": measured(2.0)})
    assert order(one, drafter("a", in_flight=30), drafter("b", in_flight=20)) == ["b", "a"]


def test_sessions_that_slow_each_other_down_are_spread_over_lesser_drafters() -> None:
    """Six sessions gain 0.6 each where one alone would gain 2: a seventh brings next to nothing."""
    one = verifier(
        pairs={"a": measured(1.6, sessions=6, acceptance=0.9), "b": measured(1.4, acceptance=0.5)}
    )
    crowded = drafter("a", step_ms=0.5, running=6, busy=0.5)
    assert order(one, crowded, drafter("b", step_ms=0.5)) == ["b", "a"]
    shared = verifier(
        pairs={"a": measured(5.0, sessions=6, acceptance=0.9), "b": measured(1.4, acceptance=0.5)}
    )
    assert order(shared, crowded, drafter("b", step_ms=0.5)) == ["a", "b"]


def test_unmeasured_ones_and_old_outcasts_are_worth_a_trial() -> None:
    def trials(quiet_s: float, sessions: int = 0) -> list[list[str]]:
        slow = measured(0.7, acceptance=0.1, quiet_s=quiet_s)
        new = measured(0.0, rounds=3, sessions=sessions)
        one = verifier(pairs={"good": measured(3.0), "slow": slow, "new": new})
        found = worths(one, drafter("good"), drafter("slow", step_ms=50), drafter("new"))
        of_each = untried(found), forgotten(found, ranked(found))
        return [[worth.drafter.address for worth in some] for some in of_each]

    assert trials(0.0) == [["new"], []]
    assert trials(REPROBE_S) == [["new"], ["slow"]]
    assert trials(0.0, sessions=1) == [[], []], "one trial at a time is enough"


def test_sessions_are_taken_to_crowd_a_drafter_by_the_time_it_has() -> None:
    one = verifier(pairs={})
    slow, fast = worths(one, drafter("slow", step_ms=6), drafter("fast", step_ms=0.3))
    assert slow.capacity < fast.capacity
    assert 0 < fast.crowding < slow.crowding <= 1


def test_one_of_which_nothing_is_known_is_taken_to_have_time_for_one_session() -> None:
    """Else a burst would go to who has just joined, all of it."""
    (idle,) = worths(verifier(), drafter("new", step_ms=0.0))
    (taken,) = worths(verifier(), drafter("new", step_ms=0.0, in_flight=1))
    assert idle.capacity == taken.capacity == 1
    assert taken.marginal < idle.marginal / 2


GAINS = st.floats(0.5, 5.0)


@given(st.lists(st.tuples(GAINS, st.integers(0, 40)), min_size=1, max_size=6))
def test_order_is_total_and_the_best_is_never_left_out(known: list[tuple[float, int]]) -> None:
    drafters = [drafter(f"d{n}", running=busy) for n, (_, busy) in enumerate(known)]
    one = verifier(pairs={f"d{n}": measured(gain) for n, (gain, _) in enumerate(known)})
    found = worths(one, *drafters)
    kept = ranked(found)
    assert len({worth.drafter.address for worth in kept}) == len(kept) <= len(drafters)
    assert all(worth.gain >= 1 for worth in kept)
    best = max(found, key=lambda worth: worth.gain)
    assert best.gain < 1 or any(worth is best for worth in kept)
    assert [w.marginal for w in kept] == sorted((w.marginal for w in kept), reverse=True)
