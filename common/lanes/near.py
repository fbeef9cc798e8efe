"""Lanes between processes of one machine: UNIX sockets, for one user's own."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

OFFER = "paceline-lane"
"""Metadata with which a server offers a lane: the path of a socket."""

_PREFIX = "paceline-"


class NearOffer:
    """A lane that waits for its other end on this machine; see `Offer`.

    Raises:
        OSError: There is nowhere to put a socket.
    """

    far = False

    def __init__(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._folder = ""
        self.path = ""
        """What to `connect` to."""
        try:
            self._folder = tempfile.mkdtemp(prefix=_PREFIX)  # for this user alone
            self.path = str(Path(self._folder) / secrets.token_hex(8))
            if not self.path.isascii():  # nor could metadata hold it
                raise OSError(f"{self.path!r} is not ASCII")
            self._listener.bind(self.path)
            self._listener.listen(1)
            self._listener.setblocking(False)
        except OSError:
            self.close()
            raise

    @property
    def metadata(self) -> tuple[str, str]:
        """What the stream's initial metadata says of it."""
        return OFFER, self.path

    async def accept(self) -> socket.socket:
        """Waits for the other end; only one is let in."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return connection

    def close(self) -> None:
        """Takes the offer back."""
        self._listener.close()
        # Not as a `TemporaryDirectory`: to remove one takes a descriptor, and there may be none.
        for remove, path in ((os.unlink, self.path), (os.rmdir, self._folder)):
            with suppress(OSError):
                remove(path)


def connect(path: str) -> socket.socket | None:
    """Takes an offer up; None where it is another machine's or user's, or stands no longer, or no
    socket is to be had."""
    folder = Path(path).parent
    try:
        owner = folder.stat()
        mine = owner.st_uid == os.geteuid() and not owner.st_mode & 0o077
        if not mine or not folder.name.startswith(_PREFIX):  # a socket of somebody else's
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    connection.setblocking(False)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection
