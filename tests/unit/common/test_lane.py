"""Messages between two ends of one socket."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import lane
from common.inbox import Note
from common.lane import Lane, Offer, connect


class End:
    """A lane that keeps what comes."""

    def __init__(self, connection: socket.socket) -> None:
        self.came: list[bytes] = []
        self.times: list[float] = []
        self.lane = Lane(connection, self._read)

    def take(self) -> None:
        for note in self.lane.take():
            note()

    def _read(self, message: bytes, sent_at: float) -> list[Note]:
        self.times.append(sent_at)
        return [lambda: self.came.append(message)]


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


async def test_an_offer_stands_for_one() -> None:
    with Offer() as offer:
        near = connect(offer.path)
        assert near is not None
        far = await offer.accept()
    assert connect(offer.path) is None, "taken back"
    one, other = End(near), End(far)
    one.lane.send(b"hello")
    while not other.came:
        other.take()
        await asyncio.sleep(0)
    one.lane.close()
    other.lane.close()


def test_there_may_be_nowhere_to_put_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match="nowhere"):
        Offer()
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(OSError, match="too long"):
        Offer()
    assert not list(deep.iterdir()), "nothing is left"


def test_an_offer_of_another_machine_leads_nowhere(tmp_path: Path) -> None:
    assert connect(str(tmp_path / "elsewhere")) is None
    assert connect("x" * 200) is None


@pytest.mark.parametrize(
    ("folder", "mode", "let_in"),
    [("paceline-x", 0o700, True), ("paceline-x", 0o755, False), ("ssh-x", 0o700, False)],
)
def test_sockets_of_others_are_left_alone(
    folder: str, mode: int, let_in: bool, tmp_path: Path
) -> None:
    """A drafter elsewhere may name any socket of this machine."""
    place = tmp_path / folder
    place.mkdir(mode)
    place.chmod(mode)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        listener.listen(1)
        connection = connect(str(place / "s"))
        assert (connection is not None) is let_in
        if connection is not None:
            connection.close()


def test_a_path_that_metadata_cannot_hold_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ü").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "ü"))
    with pytest.raises(OSError, match="is not ASCII"):
        Offer()
    assert not list((tmp_path / "ü").iterdir())
