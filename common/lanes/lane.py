"""A lane: the messages of a stream between two processes, past gRPC.

Through gRPC a message is handed from thread to thread five times between two engines, and each of
them has to be woken first. So who serves the stream offers another connection, from which the other
engine's thread reads by itself: on one machine a UNIX socket (`near`), between two a TCP connection
(`far`). The stream stays open beside it: it says who calls, and that both are there.

A message is its length (4 bytes), when it was sent (8 bytes: seconds of the sender's monotonic
clock) and its bytes.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from common.inbox import Note

_log = logging.getLogger(__name__)

_HEAD = struct.Struct("<Id")
_PEER = struct.Struct("3i")
"""The other end's process, user and group."""
_CHUNK_BYTES = 1 << 18
_RECORD_BYTES = 1 << 14
"""Most that one call is given to send within TLS, for it sends all of that or none."""
_MOST_BYTES = 64 << 20
"""Largest message, as with gRPC, and most that may wait for the other end to read."""

_MOST_NOTES = 1000
"""Notes of one turn; what else has come waits for the next."""

_OLD_S = 60.0
"""A message that says it is older, or from the future, counts as sent just now."""

_LATELY_S = 2.0
"""What came soonest of another machine's messages is of so long, or of twice that."""

_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

Read = Callable[[bytes, float], list[Note]]
"""What a message, sent at such a time, asks of the engine; raises where it makes no sense."""


class Offer(Protocol):
    """A lane that waits for its other end."""

    @property
    def far(self) -> bool:
        """Whether the other end is on another machine."""

    @property
    def metadata(self) -> tuple[str, str]:
        """What the stream's initial metadata says of it."""

    async def accept(self) -> socket.socket:
        """Waits for the other end; only one is let in."""

    def close(self) -> None:
        """Takes the offer back."""


class Lane:
    """One end, for one thread; nothing here keeps it waiting.

    Args:
        connection: A connected stream socket, or such a one within TLS; closed with the lane.
        read: Reads messages.
        far: Whether the other end is on another machine, whose clock is another.
    """

    def __init__(self, connection: socket.socket, read: Read, *, far: bool = False) -> None:
        connection.setblocking(False)
        self._socket, self._read = connection, read
        self._tls = connection if isinstance(connection, ssl.SSLSocket) else None
        self._came, self._unsent = bytearray(), bytearray()
        self._more = False  # whole messages came that wait for the next turn
        self._over = ""  # why
        self._clock = _OtherClock() if far else _SameClock()
        self.shares_processors = not far and _shares_processors(connection)
        """Whether there are processors that both ends may run on."""
        weakref.finalize(self, connection.close)  # where an engine is gone, nobody closes

    def fileno(self) -> int:
        """See `common.inbox.Feed`."""
        return self._socket.fileno()

    @property
    def behind(self) -> bool:
        """Whether `take` has something to do though nothing has come."""
        pending = self._tls is not None and self._tls.pending() > 0  # no selector sees that
        return bool(self._unsent or self._more or self._over or pending)

    def send(self, message: bytes) -> None:
        """Sends a message; `take` sends what the other end has no room for yet."""
        if not self._over:
            self._unsent += _HEAD.pack(len(message), time.monotonic()) + message
            self._write()

    def take(self, quiet_at: float = 0.0) -> list[Note]:
        """What has come asks for.

        Args:
            quiet_at: When it had not come yet, in seconds of the monotonic clock.

        Raises:
            EOFError: The lane is over; says why.
        """
        self._write()
        if not self._more:
            self._receive()
        if self._over:
            raise EOFError(self._over)
        return self._notes(quiet_at)

    def close(self) -> None:
        """Hangs up."""
        self._over = self._over or "closed"
        self._socket.close()

    def _receive(self) -> None:
        before = len(self._came)
        while len(self._came) < before + _CHUNK_BYTES:
            try:
                data = self._socket.recv(_CHUNK_BYTES)
                over = "" if data else "it hung up"
            except _BLOCKED:
                return
            except OSError as error:
                data, over = b"", _why(error)
            if over:
                if len(self._came) == before:  # else it says so again, after what came before
                    self._over = self._over or over
                return
            self._came += data
            if self._tls is None:  # within TLS one call reads a record
                return

    def _notes(self, quiet_at: float) -> list[Note]:
        """Reads the messages that are there as a whole, as many as one turn takes."""
        notes: list[Note] = []
        at, now, self._more = 0, time.monotonic(), False
        while len(self._came) >= at + _HEAD.size:
            length, sent_at = _HEAD.unpack_from(self._came, at)
            if length > _MOST_BYTES:
                raise EOFError(f"a message of {length} bytes")
            start, end = at + _HEAD.size, at + _HEAD.size + length
            if len(self._came) < end:
                break
            if len(notes) >= _MOST_NOTES:
                self._more = True
                break
            told_at = self._clock.ours(sent_at, quiet_at, now)
            try:
                notes += self._read(bytes(self._came[start:end]), told_at)
            except Exception as error:
                _log.exception("a message makes no sense")
                raise EOFError("a message that makes no sense") from error
            at = end
        del self._came[:at]
        return notes

    def _write(self) -> None:
        if not self._unsent or self._over:
            return
        try:
            while self._unsent:
                some = self._unsent if self._tls is None else self._unsent[:_RECORD_BYTES]
                del self._unsent[: self._socket.send(some)]
        except _BLOCKED:
            if len(self._unsent) > _MOST_BYTES:
                self._over = "it does not read"
        except OSError as error:
            self._over = _why(error)


def _why(error: OSError) -> str:
    """Why a lane is over; within TLS a reader, too, may meet a closed end as a broken pipe."""
    return "it hung up" if isinstance(error, BrokenPipeError) else str(error)


class _SameClock:
    """Of processes of one machine."""

    def ours(self, sent_at: float, quiet_at: float, now: float) -> float:
        """When a message was sent; now, where what it says cannot be."""
        return sent_at if now - _OLD_S <= sent_at <= now else now


class _OtherClock:
    """Of another machine: what came soonest, of late, was on its way for no time.

    So a message that lay here until a pass was over does not count as one that came late. Nor does
    one that was waited for count as one that came before.
    """

    def __init__(self) -> None:
        self._since = -math.inf
        self._shift = self._before = math.inf  # to our clock at least, since then and before

    def ours(self, sent_at: float, quiet_at: float, now: float) -> float:
        """When a message was sent, or rather came; now, where what it says cannot be."""
        if not math.isfinite(sent_at):
            return now
        if now - self._since >= _LATELY_S:
            recent = now - self._since < 2 * _LATELY_S
            self._before, self._shift = self._shift if recent else math.inf, math.inf
            self._since = now
        self._shift = min(self._shift, now - sent_at)
        came_at = max(sent_at + min(self._shift, self._before), quiet_at)
        return came_at if now - _OLD_S <= came_at <= now else now


def _shares_processors(connection: socket.socket) -> bool:
    """Whether both ends of a socket may run on the same processors; so they may where nobody says.

    Linux knows the process at the other end, and where its threads may run.
    """
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        process, _, _ = _PEER.unpack(credentials)
        if process <= 0:  # of another namespace
            return True
        return not os.sched_getaffinity(0).isdisjoint(os.sched_getaffinity(process))
    except (AttributeError, OSError):
        return True
