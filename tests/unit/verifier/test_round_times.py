"""The parts of a round follow each other without gaps, whatever was measured."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from verifier.round_times import Stopwatch

seconds = st.floats(0, 10, allow_nan=False)


@given(st.lists(st.tuples(seconds, seconds, seconds, seconds, seconds), min_size=1, max_size=5))
def test_times_never_fall_and_rounds_meet(rounds: list[tuple[float, ...]]) -> None:
    now = 100.0
    watch, last = Stopwatch(now), now
    for ready, wire, until_start, run, commit in rounds:
        started = now + until_start
        verified = started + run
        watch.stepped(started, verified)
        now = verified + commit
        times = watch.lap(now, ready_s=95.0 + ready, wire_s=wire, drafted=4, accepted=1)
        line = [times.began_s, times.sent_s, times.ready_s, times.started_s, times.verified_s]
        assert [*line, times.committed_s] == sorted([*line, times.committed_s])
        assert times.began_s == last
        assert astuple(times)[-2:] == (4, 1)
        last = times.committed_s


def test_a_prefill_of_several_steps_is_one_pass() -> None:
    watch = Stopwatch(1.0)
    watch.stepped(2.0, 3.0)
    watch.stepped(4.0, 5.0)
    times = watch.lap(6.0, ready_s=0.0, wire_s=0.1, drafted=0, accepted=0)
    assert (times.started_s, times.verified_s) == (2.0, 5.0)
    assert times.sent_s == times.ready_s == times.began_s == 1.0, "no draft was waited for"


def test_a_wait_is_the_drafters_and_then_the_ways() -> None:
    watch = Stopwatch(1.0)
    watch.stepped(3.0, 4.0)
    times = watch.lap(4.5, ready_s=2.0, wire_s=0.25, drafted=4, accepted=4)
    assert (times.sent_s, times.ready_s) == (1.75, 2.0)
