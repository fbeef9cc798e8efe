"""How other threads, and other processes, reach the thread that owns a model."""

from __future__ import annotations

import select
import socket
import threading
import time
from functools import partial

import pytest

from common.inbox import Inbox, Note

FOREVER_S = 60.0


class Wire:
    """A feed of one socket: every byte is a note of its own."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.came: list[int] = []
        self.behind = self.closed = False
        self.turns = 0
        self.quiet_at = 0.0

    def fileno(self) -> int:
        return self.near.fileno()

    def take(self, quiet_at: float) -> list[Note]:
        self.turns += 1
        self.quiet_at = quiet_at
        try:
            data = self.near.recv(100)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError("the end")
        return [lambda byte=byte: self.came.append(byte) for byte in data]  # type: ignore[misc]

    def close(self) -> None:
        self.closed = True
        self.near.close()


@pytest.fixture
def wire():
    wire = Wire()
    yield wire
    wire.near.close()
    wire.far.close()


def readable(inbox: Inbox) -> bool:
    return bool(select.select([inbox], [], [], 0)[0])


def never(why: str) -> None:
    raise AssertionError(why)


def test_notes_come_in_order_and_one_that_fails_stops_none() -> None:
    inbox, done = Inbox(), []
    inbox.post(lambda: done.append(1), lambda: 1 / 0, lambda: done.append(2))
    assert inbox.backlog == 3
    assert readable(inbox)
    assert inbox.take()
    assert done == [1, 2]
    assert not readable(inbox), "a roll would end for nothing"
    assert not inbox.take()


def test_a_bell_that_rings_late_is_heard() -> None:
    """Who wakes says so first and rings then, and the engine may look in between."""
    inbox = Inbox()
    inbox._pulled = True
    inbox.take()
    inbox._cord.send(b"-")
    inbox.take()
    assert not readable(inbox)
    inbox.wake()
    assert readable(inbox)


def test_a_note_left_meanwhile_waits_for_the_next_time() -> None:
    inbox, done = Inbox(), []
    inbox.post(lambda: inbox.post(lambda: done.append(1)))
    assert inbox.take()
    assert not done
    assert inbox.take()
    assert done == [1]


def test_who_waits_is_woken_by_every_note() -> None:
    inbox, done = Inbox(), threading.Semaphore(0)

    def work() -> None:
        for _ in range(2000):
            while not inbox.take():
                inbox.wait(FOREVER_S)

    worker = threading.Thread(target=work)
    worker.start()
    for _ in range(2000):
        inbox.post(done.release)
        assert done.acquire(timeout=10), "a note was slept over"
    worker.join()


def test_many_threads_may_leave_notes() -> None:
    inbox, done = Inbox(), []

    def leave() -> None:
        for number in range(500):
            inbox.post(partial(done.append, number))

    threads = [threading.Thread(target=leave) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(done) < 4000:
        if not inbox.take():
            inbox.wait(10.0)
    for thread in threads:
        thread.join()


def test_a_wait_without_notes_lasts_as_long_as_it_may_and_no_longer() -> None:
    inbox, began = Inbox(), time.monotonic()
    inbox.wait(0.0)
    inbox.wait(0.01)
    assert time.monotonic() - began >= 0.01
    inbox.wake()
    inbox.wait(FOREVER_S)
    assert time.monotonic() - began < FOREVER_S


def test_a_feed_ends_a_wait(wire: Wire) -> None:
    inbox = Inbox()
    inbox.watch(wire, never)
    assert inbox.take(), "that it is to be read is a note"
    assert not inbox.take()
    inbox.wait(0.0)
    wire.far.send(b"\x05\x06")
    inbox.wait(FOREVER_S)
    assert inbox.take()
    assert wire.came == [5, 6]
    inbox.unwatch(wire)
    wire.far.send(b"\x07")
    inbox.take()
    assert wire.closed
    inbox.wait(1e-3)
    assert not inbox.take()
    assert wire.came == [5, 6]


def test_a_feed_is_told_since_when_it_may_have_something(wire: Wire) -> None:
    """Since it was looked at last, or just now where that was waited for."""
    inbox = Inbox()
    inbox.watch(wire, never)
    inbox.take()
    looked_at = time.monotonic()
    inbox.take()
    wire.far.send(b"a")
    time.sleep(0.02)
    came_by = time.monotonic()
    inbox.wait(FOREVER_S)  # which is over at once
    inbox.take()
    assert looked_at <= wire.quiet_at <= came_by - 0.02
    late = threading.Timer(0.3, wire.far.send, [b"b"])
    waits_at = time.monotonic()
    late.start()
    inbox.wait(FOREVER_S)
    inbox.take()
    late.join()
    assert wire.came == [97, 98]
    assert wire.quiet_at > waits_at + 0.2


def test_that_a_feed_is_over_is_told_once(wire: Wire) -> None:
    inbox, ends = Inbox(), []
    inbox.watch(wire, ends.append)
    wire.far.send(b"\x05")
    wire.far.close()
    while not ends:
        inbox.take()
    assert ends == ["the end"]
    assert wire.came == [5]
    assert not inbox.take()
    inbox.unwatch(wire)  # crosses the end on its way
    assert inbox.take()
    assert wire.closed


def test_a_feed_that_is_behind_gets_turns_though_nothing_comes(wire: Wire) -> None:
    inbox = Inbox()
    inbox.watch(wire, never)
    inbox.take()
    wire.behind = True
    began = time.monotonic()
    for _ in range(3):
        inbox.wait(FOREVER_S)
        assert not inbox.take(), "nothing came"
    assert wire.turns == 3
    assert time.monotonic() - began < FOREVER_S
