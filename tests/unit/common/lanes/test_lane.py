"""Messages between two ends of one socket."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.lanes import lane
from common.lanes.lane import Lane
from tests.unit.common.lanes.end import End


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    one, other = (End(each) for each in socket.socketpair())
    yield one, other
    one.lane.close()
    other.lane.close()


sizes = st.integers(0, 300) | st.sampled_from([4096, 1 << 18, (1 << 20) + 1])


@given(turns=st.lists(st.tuples(st.booleans(), sizes | st.none()), max_size=30))
def test_what_is_sent_comes_whole_and_in_order(turns: list[tuple[bool, int | None]]) -> None:
    """Whoever sends and takes when, and whatever a socket has room for."""
    both = tuple(End(each) for each in socket.socketpair())
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    for number, (who, size) in enumerate(turns):
        if size is None:
            both[who].take()
        else:
            message = bytes([number]) * size
            both[who].lane.send(message)
            sent[who].append(message)
    for _ in range(1000):
        for end in both:
            end.take()
        if [len(end.came) for end in both] == [len(sent[1]), len(sent[0])]:
            break
    assert both[0].came == sent[1]
    assert both[1].came == sent[0]
    assert not any(end.lane.behind for end in both)
    for end in both:
        assert end.times == sorted(end.times)
        end.lane.close()


def test_nothing_waits(ends: tuple[End, End]) -> None:
    one, other = ends
    one.take()
    assert one.came == []
    one.lane.send(b"x" * (8 << 20))  # more than any socket holds
    assert one.lane.behind
    while one.lane.behind:
        other.take()
        one.take()
    while not other.came:
        other.take()
    assert [len(message) for message in other.came] == [8 << 20]


def test_who_does_not_read_is_left(ends: tuple[End, End]) -> None:
    one, _ = ends
    for _ in range(70):
        one.lane.send(b"x" * (1 << 20))
    assert one.lane.behind
    with pytest.raises(EOFError, match="it does not read"):
        one.take()


def test_what_was_sent_before_the_end_comes(ends: tuple[End, End]) -> None:
    one, other = ends
    one.lane.send(b"last")
    one.lane.close()
    other.take()
    assert other.came == [b"last"]
    with pytest.raises(EOFError, match="it hung up"):
        other.take()
    other.lane.send(b"in vain")
    assert other.lane.behind, "that it is over is still to be told"
    with pytest.raises(EOFError, match="it hung up"):
        other.take()


@pytest.mark.parametrize("sent_at", [math.inf, -math.inf, math.nan, 0.0, 1e300])
def test_a_clock_that_cannot_be_does_not_count(sent_at: float, ends: tuple[End, End]) -> None:
    one, other = ends
    before = time.monotonic()
    one.lane._socket.send(lane._HEAD.pack(1, sent_at) + b"x")
    other.take()
    assert other.came == [b"x"]
    assert before <= other.times[0] <= time.monotonic() or sent_at == 0.0 == other.times[0]


def test_a_turn_takes_no_more_than_so_much(ends: tuple[End, End]) -> None:
    one, other = ends
    one.lane._socket.send(lane._HEAD.pack(0, time.monotonic()) * 2500)
    turns = []
    while len(other.came) < 2500:
        before = len(other.came)
        other.take()
        turns.append(len(other.came) - before)
        assert other.lane.behind is (turns[-1] == lane._MOST_NOTES)
    assert max(turns) == lane._MOST_NOTES


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="nobody says")
@pytest.mark.parametrize(
    ("other", "shared"), [({2, 3}, True), ({4, 5}, False), (ProcessLookupError(), True)]
)
def test_ends_on_processors_of_their_own_share_none(
    other: set[int] | OSError, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def affinity(process: int) -> set[int]:
        if process == 0:
            return {0, 1, 2}
        assert process == os.getpid()
        if isinstance(other, OSError):
            raise other
        return other

    monkeypatch.setattr(os, "sched_getaffinity", affinity)
    one, two = socket.socketpair()
    with one, two:
        assert Lane(one, lambda message, sent_at: []).shares_processors == shared


def test_what_lay_here_came_when_it_was_there() -> None:
    """By another machine's clock, which is 100 s ahead, messages that are read late included."""
    one, other = socket.socketpair()
    sender, end = socket.socket.send, End(other, far=True)
    before = time.monotonic()
    sender(one, lane._HEAD.pack(1, before + 100) + b"a")
    end.take()  # the soonest: what clocks differ by is known from now on
    quick_s = end.times[0] - before
    sender(one, lane._HEAD.pack(1, time.monotonic() + 100) + b"b")
    sent = time.monotonic()
    time.sleep(0.05)
    end.take()
    assert end.came == [b"a", b"b"]
    assert end.times[1] - sent == pytest.approx(quick_s, abs=0.005)
    for impossible in (math.nan, math.inf, -math.inf):
        sender(one, lane._HEAD.pack(0, impossible))
        end.take()
        assert end.times[-1] == pytest.approx(time.monotonic(), abs=0.5)
    end.lane.close()
    one.close()
