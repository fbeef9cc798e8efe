"""How many workers a pool should have: the right way for every signal, bounded, and steady."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.autoscale import Autoscaler, needs
from gateway.candidate import Candidate
from tests.clock import Clock
from tests.unit.gateway.candidates import drafter, measured, verifier, worker


def busy(address: str = "v", **load) -> Candidate:
    return verifier(address, running=4, batch_occupancy=0.7, **load)


def drafting(sessions: int = 8, **pair) -> Candidate:
    """A verifier whose sessions are all drafted for by "d"."""
    facts = {"sessions": sessions, "acceptance": 0.8} | pair
    return verifier(running=sessions, pairs={"d": measured(**facts)})


def verifiers_needed(*verifiers: Candidate) -> float | None:
    return needs(verifiers, [])["verifier", ""]


def drafters_needed(one: Candidate, *drafters: Candidate) -> float | None:
    return needs([one], drafters or [drafter("d")])["drafter", ""]


def test_verifiers_at_their_target_are_enough() -> None:
    assert verifiers_needed(busy("a"), busy("b")) == pytest.approx(2.0)


def test_more_load_wants_more_verifiers() -> None:
    idle = verifiers_needed(verifier(running=1, batch_occupancy=0.1))
    full = verifiers_needed(verifier(running=8, batch_occupancy=1.0))
    waiting = verifiers_needed(verifier(running=8, waiting=8, batch_occupancy=1.0))
    assert idle < 1 < full < waiting


def test_a_long_wait_wants_more_verifiers_however_empty_the_steps_seem() -> None:
    """As where the cache is full, but not the batch."""
    assert verifiers_needed(busy(queue_wait_ms=200.0)) == pytest.approx(1.0)
    assert verifiers_needed(busy(queue_wait_ms=400.0)) == pytest.approx(1.6)
    assert verifiers_needed(busy(queue_wait_ms=1e6)) == pytest.approx(2.0)


def test_nothing_running_wants_no_verifier_and_everything_waiting_wants_them() -> None:
    assert verifiers_needed(verifier()) == 0.0
    assert verifiers_needed(verifier(waiting=3)) > 1


def test_drafters_follow_the_sessions() -> None:
    assert drafters_needed(drafting(0)) == 0.0
    assert drafters_needed(drafting(8)) == pytest.approx(2 * drafters_needed(drafting(4)))


def test_sessions_that_wait_will_be_drafted_for_as_well() -> None:
    waiting = verifier(running=8, waiting=8, pairs={"d": measured(sessions=8)})
    running = verifier(running=8, pairs={"d": measured(sessions=8)})
    assert drafters_needed(waiting) == pytest.approx(2 * drafters_needed(running))


def test_a_slower_drafter_wants_more_of_them_while_drafts_stay_as_long() -> None:
    """From 0.5 ms to 2 ms a token drafts stay at their longest: four times the work a round."""
    fast = drafters_needed(drafting(round_trip_ms=0), drafter("d", step_ms=0.5))
    slow = drafters_needed(drafting(round_trip_ms=0), drafter("d", step_ms=2.0))
    assert 3 * fast < slow < 4 * fast, "rounds take longer, too"


def test_lower_acceptance_changes_the_ratio_and_none_wants_no_drafters() -> None:
    likely = drafters_needed(drafting(acceptance=0.9))
    unlikely = drafters_needed(drafting(acceptance=0.4))
    assert drafters_needed(drafting(acceptance=0.01)) == 0.0
    assert 0.0 < unlikely < likely, "drafts are shorter"


def test_slower_verifiers_want_fewer_drafters() -> None:
    fast = verifier(step_ms=20, running=8, pairs={"d": measured(sessions=8)})
    slow = verifier(step_ms=80, running=8, pairs={"d": measured(sessions=8)})
    assert drafters_needed(slow) < drafters_needed(fast)


def test_drafters_that_serve_many_sessions_in_a_pass_are_needed_less() -> None:
    one_by_one = drafters_needed(drafting(8))
    together = drafters_needed(drafting(8), drafter("d", running=8, busy=0.5))
    assert together == pytest.approx(0.5 / 0.8)
    assert together < one_by_one
    saturated = drafters_needed(drafting(8), drafter("d", running=8, busy=1.0))
    assert saturated == pytest.approx(one_by_one), "who is always busy says nothing"


def test_pools_share_the_work_by_their_size() -> None:
    drafters = [
        worker("d", model="small", pool="t4", step_ms=3.0),
        worker("e", model="small", pool="t4", step_ms=3.0),
        worker("f", model="small", pool="a10", step_ms=3.0),
    ]
    found = needs([drafting(12, round_trip_ms=0.0)], drafters)
    assert found["drafter", "t4"] == pytest.approx(2 * found["drafter", "a10"])


def test_drafters_that_fit_nobody_are_not_needed() -> None:
    stranger = drafter("d")
    other = Candidate(
        address="v",
        description=worker("v").description.__class__(
            **{**vars(worker("v").description), "tokenizer_fingerprint": "other"}
        ),
        load=drafting().load,
    )
    assert needs([other], [stranger])["drafter", ""] == 0.0


def pools(scaler: Autoscaler, verifiers, drafters=()):
    return {(each.tier, each.pool): each for each in scaler.pools(verifiers, drafters)}


def test_pools_are_listed_with_what_is_ready() -> None:
    verifiers = [busy("a"), busy("b", broken=True), worker("c", pool="h100", lost=True)]
    found = Autoscaler(Clock()).pools(verifiers, [drafter("d")])
    assert [(each.tier, each.pool, each.ready) for each in found] == [
        ("verifier", "", 1),
        ("verifier", "h100", 0),
        ("drafter", "", 1),
    ]
    assert all(each.desired >= 1 for each in found)


def test_a_pool_that_is_lost_keeps_the_size_it_needed() -> None:
    clock = Clock()
    scaler = Autoscaler(clock)
    loaded = [verifier(f"v{n}", running=8, batch_occupancy=0.7) for n in range(5)]
    assert pools(scaler, loaded)["verifier", ""].desired == 5
    clock.now += 3600
    lost = [worker(f"v{n}", lost=True) for n in range(5)]
    assert pools(scaler, lost)["verifier", ""].desired == 5
    assert pools(scaler, lost)["verifier", ""].ready == 0


def test_a_need_that_is_no_number_leaves_what_was_needed() -> None:
    clock = Clock()
    scaler = Autoscaler(clock)
    loaded = [verifier(f"v{n}", running=8, batch_occupancy=0.7) for n in range(5)]
    assert pools(scaler, loaded)["verifier", ""].desired == 5
    for occupancy in (math.nan, math.inf):
        clock.now += 3600
        odd = [verifier(f"v{n}", running=8, batch_occupancy=occupancy) for n in range(5)]
        assert pools(scaler, odd)["verifier", ""].desired == 5


def test_a_pool_that_is_unlisted_is_kept_for_an_hour() -> None:
    """Discovery lists only pods that are ready: where none is, the pool is needed all the same."""
    clock = Clock()
    scaler = Autoscaler(clock)
    loaded = [verifier(f"v{n}", running=8, batch_occupancy=0.7) for n in range(5)]
    pools(scaler, loaded, [drafter("d")])
    clock.now += 3500
    found = pools(scaler, [])
    assert {key: (each.ready, each.desired) for key, each in found.items()} == {
        ("verifier", ""): (0, 5),
        ("drafter", ""): (0, 1),
    }
    back = [verifier("v0", running=1, batch_occupancy=0.05)]
    clock.now += 1
    assert pools(scaler, back)["verifier", ""].desired == 5, "what is needed falls slowly"
    clock.now += 200
    assert list(pools(scaler, back)) == [("verifier", "")], "drafters were gone for too long"


def test_growth_is_bounded() -> None:
    flooded = verifier(running=8, waiting=1000, batch_occupancy=1.0)
    assert pools(Autoscaler(Clock()), [flooded])["verifier", ""].desired == 2


def test_growth_is_taken_up_sooner_than_decline() -> None:
    clock = Clock()
    scaler = Autoscaler(clock)
    idle = [verifier(f"v{n}", running=1, batch_occupancy=0.05) for n in range(4)]
    full = [verifier(f"v{n}", running=8, batch_occupancy=1.0, waiting=2) for n in range(4)]
    assert pools(scaler, idle)["verifier", ""].desired == 1
    clock.now += 15
    grown = pools(scaler, full)["verifier", ""].desired
    assert grown > 4
    clock.now += 15
    assert pools(scaler, idle)["verifier", ""].desired > 4, "not yet"
    clock.now += 600
    assert pools(scaler, idle)["verifier", ""].desired == 1


@given(st.lists(st.floats(0.665, 0.735), min_size=1, max_size=50))
def test_noise_moves_nothing(occupancies: list[float]) -> None:
    clock = Clock()
    scaler = Autoscaler(clock)
    for occupancy in [0.7, *occupancies]:
        found = pools(scaler, [verifier(running=4, batch_occupancy=occupancy)] * 3)
        assert found["verifier", ""].desired == 3
        clock.now += 5


LOADS = st.builds(
    lambda running, waiting, occupancy, wait: {
        "running": running,
        "waiting": waiting,
        "batch_occupancy": occupancy,
        "queue_wait_ms": wait,
    },
    st.integers(0, 64),
    st.integers(0, 500),
    st.floats(0, 1),
    st.floats(0, 1e5),
)


@given(st.lists(LOADS, min_size=1, max_size=4), st.floats(0.1, 100.0), st.floats(0, 1))
def test_always_some_never_more_than_double(loads, step_ms: float, acceptance: float) -> None:
    verifiers = [
        verifier(
            f"v{n}",
            **load,
            pairs={"d": measured(sessions=load["running"], acceptance=acceptance)},
        )
        for n, load in enumerate(loads)
    ]
    found = Autoscaler(Clock()).pools(verifiers, [drafter("d", step_ms=step_ms)])
    for pool in found:
        assert 1 <= pool.desired <= 2 * pool.ready
