"""What two reports say together."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paceline.v1 import worker_pb2

from gateway.autoscale import Autoscaler
from gateway.candidate import Candidate
from gateway.placement import place
from gateway.reports import Reports
from tests.clock import Clock
from tests.unit.gateway.candidates import DESCRIPTION


@pytest.fixture
def clock() -> Clock:
    return Clock()


def report(steps: int = 0, **pair: float) -> worker_pb2.WatchStatusResponse:
    pairs = [worker_pb2.PairStatus(drafter="d", **pair)] if pair else []  # type: ignore[arg-type]
    return worker_pb2.WatchStatusResponse(accepting=True, step_ms=10, steps=steps, pairs=pairs)


def test_busy_time_is_steps_times_their_duration(clock: Clock) -> None:
    reports = Reports(clock)
    assert reports.take(report(0)).busy is None
    clock.now += 1
    assert reports.take(report(50)).busy == pytest.approx(0.5)
    clock.now += 10
    assert reports.take(report(50)).busy == pytest.approx(0.0), "long enough to forget"
    clock.now += 1
    assert reports.take(report(1000)).busy == pytest.approx(0.5), "never over the whole time"


def test_a_restarted_worker_is_known_anew(clock: Clock) -> None:
    reports = Reports(clock)
    reports.take(report(1000))
    clock.now += 1
    assert reports.take(report(3)).busy is None


def test_acceptance_of_a_token_follows_from_share_and_length(clock: Clock) -> None:
    reports = Reports(clock)
    # Drafts of 4 tokens at 0.8: (0.8 + 0.64 + 0.512 + 0.4096) / 4 of them are committed.
    pair = reports.take(report(1, rounds=100, drafted_tokens=400, acceptance=0.5904)).pairs["d"]
    assert pair.length == 4
    assert pair.acceptance == pytest.approx(0.8, abs=1e-3)


def test_recent_drafts_tell_the_length(clock: Clock) -> None:
    reports = Reports(clock)
    reports.take(report(1, rounds=100, drafted_tokens=400))
    later = reports.take(report(1, rounds=200, drafted_tokens=600)).pairs["d"]
    assert later.length == pytest.approx(2)


def test_a_pair_is_quiet_until_there_is_news_of_it(clock: Clock) -> None:
    reports = Reports(clock)
    reports.take(report(1, rounds=10, drafted_tokens=40, gain=2.0))
    clock.now += 7
    assert reports.take(report(1, rounds=10, drafted_tokens=40, gain=2.0)).pairs["d"].quiet_s == 7
    assert reports.take(report(1, rounds=11, drafted_tokens=44, gain=2.0)).pairs["d"].quiet_s == 0
    clock.now += 5
    silent = reports.take(report(1, rounds=11, drafted_tokens=44, gain=1.9)).pairs["d"]
    assert silent.quiet_s == 0, "rounds without a draft change the gain"


def test_a_quiet_pair_is_not_judged_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[float] = []
    monkeypatch.setattr(
        "gateway.reports.acceptance_of", lambda share, _: judged.append(share) or 0.5
    )
    seen = Reports(clock)
    for rounds in (10, 10, 11, 11):
        told = report(1, rounds=rounds, drafted_tokens=4 * rounds, acceptance=0.4)
        assert seen.take(told).pairs["d"].acceptance == 0.5
    assert judged == [0.4, 0.4]


def test_a_stream_that_begins_anew_counts_from_zero(clock: Clock) -> None:
    reports = Reports(clock)
    reports.take(report(1, rounds=100, drafted_tokens=400, acceptance=0.5))
    clock.now += 50
    again = reports.take(report(1, rounds=2, drafted_tokens=2, acceptance=0.5)).pairs["d"]
    assert (again.length, again.quiet_s) == (1, 0)
    assert reports.take(report(1)).pairs == {}, "a stream that ended is forgotten"


@pytest.mark.parametrize("figure", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_figures_that_cannot_be_are_unknown(clock: Clock, figure: float) -> None:
    told = worker_pb2.WatchStatusResponse(
        accepting=True,
        step_ms=figure,
        queue_wait_ms=figure,
        batch_occupancy=figure,
        plain_step_ms=figure,
        draft_wait_ms=figure,
        pairs=[
            worker_pb2.PairStatus(
                drafter="d",
                acceptance=figure,
                round_trip_ms=figure,
                draft_ms=figure,
                gain=figure,
            )
        ],
    )
    Reports(clock).take(told)
    assert told == worker_pb2.WatchStatusResponse(
        accepting=True, pairs=[worker_pb2.PairStatus(drafter="d")]
    )


@pytest.mark.parametrize(("share", "known"), [(1.0, True), (1.0 + 1e-9, True), (5.0, False)])
def test_more_than_all_is_unknown(clock: Clock, share: float, known: bool) -> None:
    told = worker_pb2.WatchStatusResponse(batch_occupancy=share)
    told.pairs.add(drafter="d", acceptance=share)
    Reports(clock).take(told)
    assert bool(told.batch_occupancy) == bool(told.pairs[0].acceptance) == known


FIGURES = st.floats() | st.floats(0, 100)
COUNTS = st.integers(0, 2**32 - 1) | st.integers(0, 100)
TOTALS = st.integers(0, 2**64 - 1) | st.integers(0, 1000)
PAIRS = st.builds(
    worker_pb2.PairStatus,
    drafter=st.just("d"),
    sessions=COUNTS,
    rounds=TOTALS,
    drafted_tokens=TOTALS,
    acceptance=FIGURES,
    round_trip_ms=FIGURES,
    draft_ms=FIGURES,
    gain=FIGURES,
)
REPORTS = st.builds(
    worker_pb2.WatchStatusResponse,
    accepting=st.just(True),
    running=COUNTS,
    waiting=COUNTS,
    steps=TOTALS,
    step_ms=FIGURES,
    queue_wait_ms=FIGURES,
    batch_occupancy=FIGURES,
    plain_step_ms=FIGURES,
    pairs=st.lists(PAIRS, max_size=2),
)
ODDEST = worker_pb2.PairStatus(
    drafter="d", sessions=2**32 - 1, rounds=1, drafted_tokens=2**64 - 1, acceptance=0.5, gain=2
)


@example(
    [
        (
            worker_pb2.WatchStatusResponse(accepting=True, plain_step_ms=1, pairs=[ODDEST]),
            worker_pb2.WatchStatusResponse(accepting=True, step_ms=1, running=2**32 - 1),
        )
    ]
)
@given(st.lists(st.tuples(REPORTS, REPORTS), min_size=1, max_size=3))
def test_no_report_keeps_the_fleet_from_being_judged(
    told: list[tuple[worker_pb2.WatchStatusResponse, worker_pb2.WatchStatusResponse]],
) -> None:
    clock = Clock()
    scaler, reports = Autoscaler(clock), {address: Reports(clock) for address in "vd"}
    for both in told:
        verifier, drafter = (
            Candidate(address=address, description=DESCRIPTION, load=reports[address].take(status))
            for address, status in zip("vd", both, strict=True)
        )
        assert place("draft", [verifier], [drafter]).drafters == ("d",)
        for pool in scaler.pools([verifier], [drafter]):
            assert 1 <= pool.desired <= 2
        clock.now += 1
