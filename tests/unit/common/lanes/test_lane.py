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
from common.tls_config import TlsConfig
from tests.certificates import Authority
from tests.unit.common.lanes.end import End, connected


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return Authority("ours").issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[False, True], ids=["plaintext", "tls"])
def tls(request: pytest.FixtureRequest, certificates: TlsConfig) -> TlsConfig | None:
    return certificates if request.param else None


@pytest.fixture
def ends(tls: TlsConfig | None) -> Iterator[tuple[End, End]]:
    one, other = map(End, connected(tls))
    yield one, other
    one.lane.close()
    other.lane.close()


sizes = st.integers(0, 300) | st.sampled_from([4096, 1 << 18, (1 << 20) + 1])


@given(
    turns=st.lists(st.tuples(st.booleans(), sizes | st.none()), max_size=30), secure=st.booleans()
)
def test_what_is_sent_comes_whole_and_in_order(
    turns: list[tuple[bool, int | None]], secure: bool, certificates: TlsConfig
) -> None:
    """Whoever sends and takes when, and whatever a socket has room for."""
    both = tuple(map(End, connected(certificates if secure else None)))
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


def test_all_that_has_come_is_taken_at_once(ends: tuple[End, End]) -> None:
    one, other = ends
    for number in range(50):
        one.lane.send(bytes(number))
    other.take()
    assert [len(message) for message in other.came] == list(range(50))
    assert not other.lane.behind


def test_what_came_with_what_was_before_a_lane_is_there(certificates: TlsConfig) -> None:
    """Within TLS it has been read already, and no selector says so."""
    client, server = connected(certificates)
    client.send(b"secret" + lane._HEAD.pack(5, 0.0) + b"hello")
    assert server.recv(6) == b"secret"
    end = End(server)
    assert end.lane.behind
    end.take()
    assert end.came == [b"hello"]
    assert not end.lane.behind
    end.lane.close()
    client.close()


def test_who_reads_as_much_as_is_sent_is_not_left(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far behind it is."""
    monkeypatch.setattr(lane, "_MOST_BYTES", 6 << 20)
    one, other = ends
    one.lane.send(b"x" * (4 << 20))
    for _ in range(60):
        one.lane.send(b"y" * 200_000)
        other.take()
        one.take()
    assert one.lane.behind


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
    with pytest.raises(EOFError, match="closed"):
        one.take()
    other.take()
    assert other.came == [b"last"]
    with pytest.raises(EOFError, match="it hung up"):
        other.take()
    other.lane.send(b"in vain")
    assert not other.lane._unsent, "nobody will take it"
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


def test_no_more_is_read_than_a_turn_needs(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else is sent waits in the socket, and so does who sends it."""
    monkeypatch.setattr(lane, "_MOST_NOTES", 2)
    monkeypatch.setattr(lane, "_CHUNK_BYTES", 1 << 15)
    one, other = ends
    for _ in range(200):
        one.lane.send(bytes(4000))
    while len(other.came) < 200:
        other.take()
        one.take()
        assert len(other.lane._came) < 2 * lane._CHUNK_BYTES


def test_a_lane_that_nobody_has_any_more_hangs_up() -> None:
    one, other = socket.socketpair()
    with other:
        forgotten = Lane(one, lambda message, sent_at: [])
        del forgotten
        other.settimeout(10)
        assert other.recv(1) == b""


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
    clock, way_s = lane._OtherClock(), 0.01
    for sent, lay_s in ((1.0, 0.0), (1.1, 0.03), (1.2, 0.004), (2.9, 0.2)):
        came = clock.ours(sent + 100, 0.0, sent + way_s + lay_s)
        assert came == pytest.approx(sent + way_s)


def test_what_was_waited_for_came_when_the_wait_was_over() -> None:
    """Though what came before it was on its way for less."""
    clock = lane._OtherClock()
    assert clock.ours(50.0, 9.99, 10.0) == 10.0
    assert clock.ours(51.0, 10.5, 11.02) == pytest.approx(11.0), "it may have lain here"
    assert clock.ours(52.0, 12.015, 12.02) == 12.015


@pytest.mark.parametrize("sent_at", [math.inf, -math.inf, math.nan, -1e9, 1e300])
def test_what_another_clock_cannot_say_counts_for_little(sent_at: float) -> None:
    clock = lane._OtherClock()
    assert clock.ours(1100.0, 0.0, 1001.0) == 1001.0
    assert clock.ours(sent_at, 0.0, 1001.1) == 1001.1
    for now in (1001.2, 1003.0, 1005.5, 1009.0):
        assert now - lane._OLD_S <= clock.ours(now + 99, 0.0, now) <= now
    assert clock.ours(1108.6, 0.0, 1009.7) == pytest.approx(1009.6), "it is forgotten"


@pytest.mark.parametrize("step_s", [0.01, 1.0, 10.0])
def test_a_way_that_gets_longer_is_noticed_soon(step_s: float) -> None:
    """Or a clock that stood still for a while."""
    clock, now = lane._OtherClock(), 10.0
    for _ in range(int(5 / step_s) + 1):
        now += step_s
        assert clock.ours(now, 0.0, now + 0.001) == pytest.approx(now + 0.001)
    until = now + 2 * lane._LATELY_S
    while now <= until:
        now += step_s
        came = clock.ours(now, 0.0, now + 0.05)
    assert came == pytest.approx(now + 0.05)
