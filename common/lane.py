"""A lane: the messages of a stream between two processes of one machine, past gRPC.

Through gRPC a message is handed from thread to thread five times between two engines, and each of
them has to be woken first. Where both ends are on one machine, who serves the stream offers a UNIX
socket, from which the other engine's thread reads by itself. The stream stays open beside it: it
says who calls, and that both are there.

A message is its length (4 bytes), when it was sent (8 bytes: seconds of the monotonic clock, which
a machine's processes share) and its bytes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Self

from common.inbox import Note

_log = logging.getLogger(__name__)

OFFER = "paceline-lane"
"""Metadata with which a server offers a lane: the path of a socket."""

_HEAD = struct.Struct("<Id")
_PEER = struct.Struct("3i")
"""The other end's process, user and group."""
_PREFIX = "paceline-"
_CHUNK_BYTES = 1 << 18
_MOST_BYTES = 64 << 20
"""Largest message, as with gRPC, and most that may wait for the other end to read."""

_MOST_NOTES = 1000
"""Notes of one turn; what else has come waits for the next."""

_OLD_S = 60.0
"""A message that says it is older, or from the future, counts as sent just now."""

Read = Callable[[bytes, float], list[Note]]
"""What a message, sent at such a time, asks of the engine; raises where it makes no sense."""


class Lane:
    """One end, for one thread; nothing here keeps it waiting.

    Args:
        connection: A connected stream socket; closed with the lane.
        read: Reads messages.
    """

    def __init__(self, connection: socket.socket, read: Read) -> None:
        connection.setblocking(False)
        self._socket, self._read = connection, read
        self._came, self._unsent = bytearray(), bytearray()
        self._more = False  # whole messages came that wait for the next turn
        self._over = ""  # why
        self.shares_processors = _shares_processors(connection)
        """Whether there are processors that both ends may run on."""
        weakref.finalize(self, connection.close)  # where an engine is gone, nobody closes

    def fileno(self) -> int:
        """See `common.inbox.Feed`."""
        return self._socket.fileno()

    @property
    def behind(self) -> bool:
        """Whether `take` has more to do than to read."""
        return bool(self._unsent or self._more or self._over)

    def send(self, message: bytes) -> None:
        """Sends a message; `take` sends what the other end has no room for yet."""
        if not self._over:
            self._unsent += _HEAD.pack(len(message), time.monotonic()) + message
            self._write()

    def take(self) -> list[Note]:
        """What has come asks for.

        Raises:
            EOFError: The lane is over; says why.
        """
        self._write()
        if not self._more:
            self._receive()
        if self._over:
            raise EOFError(self._over)
        return self._notes()

    def close(self) -> None:
        """Hangs up."""
        self._over = self._over or "closed"
        self._socket.close()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._over = str(error)
            return
        self._over = self._over or ("" if data else "it hung up")
        self._came += data

    def _notes(self) -> list[Note]:
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
            told_at = sent_at if now - _OLD_S <= sent_at <= now else now
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
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) > _MOST_BYTES:
                self._over = "it does not read"
        except OSError as error:
            self._over = str(error)


class Offer:
    """A lane that waits for its other end.

    Raises:
        OSError: There is nowhere to put a socket.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=_PREFIX)  # for this user alone
        self.path = str(Path(self._folder.name) / secrets.token_hex(8))
        """What to `connect` to."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not self.path.isascii():  # nor could metadata hold it
                raise OSError(f"{self.path!r} is not ASCII")
            self._listener.bind(self.path)
            self._listener.listen(1)
            self._listener.setblocking(False)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def accept(self) -> socket.socket:
        """Waits for the other end; only one is let in."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return connection

    def close(self) -> None:
        """Takes the offer back."""
        self._listener.close()
        self._folder.cleanup()


def connect(path: str) -> socket.socket | None:
    """Takes an offer up; None where it is another machine's or user's, or stands no longer."""
    folder = Path(path).parent
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        owner = folder.stat()
        mine = owner.st_uid == os.geteuid() and not owner.st_mode & 0o077
        if not mine or not folder.name.startswith(_PREFIX):  # a socket of somebody else's
            raise PermissionError
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


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
