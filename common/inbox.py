"""How others reach the thread that owns a model."""

from __future__ import annotations

import logging
import select
import selectors
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

_log = logging.getLogger(__name__)

Note = Callable[[], None]
"""Something to be done on the engine's thread, between passes."""

_RETRY_S = 0.005
"""How soon a feed that is behind gets another turn."""


class Feed(Protocol):
    """What an engine's thread reads by itself, without another that posts what came."""

    @property
    def behind(self) -> bool:
        """Whether `take` has something to do though nothing has come."""

    def fileno(self) -> int:
        """A descriptor that is readable where something has come."""

    def take(self, quiet_at: float) -> list[Note]:
        """What has come, as notes.

        Args:
            quiet_at: When nothing had come yet, in seconds of the monotonic clock.

        Raises:
            EOFError: It is over; says why.
        """

    def close(self) -> None:
        """Ends it, if it is not over already."""


class Inbox:
    """Notes to an engine; one thread calls `take` and `wait`, any thread the others."""

    def __init__(self) -> None:
        self._notes: deque[Note] = deque()
        self._feeds: dict[Feed, Callable[[str], None]] = {}
        self._selector = selectors.DefaultSelector()
        self._bell, self._cord = socket.socketpair()
        for end in (self._bell, self._cord):
            end.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._pulled = False  # and not yet heard
        self.busy_since: float | None = None
        """When `take` was last called, by the monotonic clock; None after `wait` since then."""
        self._quiet_at = 0.0  # nothing had come then of what is read next, but for what was left
        ends = (self._selector, self._bell, self._cord)
        weakref.finalize(self, lambda: [end.close() for end in ends])  # engines just go

    @property
    def backlog(self) -> int:
        """Notes that wait."""
        return len(self._notes)

    def post(self, *notes: Note) -> None:
        """Leaves notes and ends a `wait`."""
        self._notes.extend(notes)
        self.wake()

    def wake(self) -> None:
        """Ends a `wait`, unless a `take` comes before it."""
        if not self._pulled:
            self._pulled = True
            self._cord.send(b"-")

    def watch(self, feed: Feed, over: Callable[[str], None]) -> None:
        """Reads a feed from now on.

        Args:
            feed: It.
            over: Told, once, why it is over; it is no longer read then.
        """
        self.post(partial(self._add, feed, over))

    def unwatch(self, feed: Feed) -> None:
        """Reads a feed no longer, and closes it."""
        self.post(partial(self._drop, feed), feed.close)

    def take(self, *, feeds: bool = True) -> bool:
        """Does what is asked for that is here now; returns whether there was anything.

        Afterwards nothing can be read from `fileno` that came before.

        Args:
            feeds: Whether to read feeds, and not only notes: to find nothing there costs a call to
                the system.
        """
        self.busy_since = time.monotonic()
        if self._pulled:
            self._hush()  # first: what is posted from now on rings again
        count = len(self._notes)  # not those that arrive meanwhile: it could last
        for _ in range(count):
            attempt(self._notes.popleft())
        return (feeds and self._read()) or count > 0

    def wait(self, most_s: float) -> None:
        """Sleeps until there is something to `take`, at most so many seconds."""
        self.busy_since = None
        if any(feed.behind for feed in self._feeds):
            most_s = min(most_s, _RETRY_S)
        here = [self._selector]  # its own descriptor, for its timeouts are of milliseconds
        if most_s > 0 and not any(select.select(here, [], [], 0)):
            select.select(here, [], [], most_s)
            self._quiet_at = time.monotonic()  # what ended it has only just come
        self._hush()

    def fileno(self) -> int:
        """A descriptor that is readable where there is something to `take`."""
        return self._selector.fileno()

    def _hush(self) -> None:
        with suppress(BlockingIOError):
            self._bell.recv(64)
            self._pulled = False  # not where the bell is about to ring: it is to be heard yet

    def _read(self) -> bool:
        """Does what feeds ask for; returns whether anything had come."""
        if not self._feeds:
            return False
        ready = [key.data for key, _ in self._selector.select(0) if key.data is not None]
        behind = [feed for feed in self._feeds if feed.behind]
        now = time.monotonic()
        for feed in dict.fromkeys([*ready, *behind]):
            try:
                for note in feed.take(self._quiet_at):
                    attempt(note)
            except EOFError as error:
                attempt(partial(self._feeds[feed], str(error)))
                self._drop(feed)
        self._quiet_at = now
        return bool(ready)

    def _add(self, feed: Feed, over: Callable[[str], None]) -> None:
        self._feeds[feed] = over
        self._selector.register(feed, selectors.EVENT_READ, feed)

    def _drop(self, feed: Feed) -> None:
        if self._feeds.pop(feed, None) is not None:
            self._selector.unregister(feed)


class Reachable:
    """What an engine is to other threads: its inbox is reached, and its own thread empties it."""

    def __init__(self) -> None:
        self._inbox = Inbox()

    def post(self, *notes: Note) -> None:
        """Has notes called on the engine's thread, between passes."""
        self._inbox.post(*notes)

    def wake(self) -> None:
        """Ends a `wait`."""
        self._inbox.wake()

    def watch(self, feed: Feed, over: Callable[[str], None]) -> None:
        """Reads a feed on the engine's thread from now on; see `Inbox.watch`."""
        self._inbox.watch(feed, over)

    def unwatch(self, feed: Feed) -> None:
        """Reads a feed no longer, and closes it."""
        self._inbox.unwatch(feed)

    @property
    def busy_since(self) -> float | None:
        """See `Steppable`."""
        return self._inbox.busy_since

    @property
    def backlog(self) -> int:
        """Notes that wait for the pass to end."""
        return self._inbox.backlog


def attempt(note: Note) -> None:
    """Does something whose failure must not end the thread that owns the model: it is logged."""
    try:
        note()
    except Exception:
        _log.exception("a part of the engine's work failed")
