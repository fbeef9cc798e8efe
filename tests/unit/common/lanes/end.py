"""One end of a lane, for tests."""

from __future__ import annotations

import socket

from common.inbox import Note
from common.lanes.lane import Lane


class End:
    """A lane that keeps what comes."""

    def __init__(self, connection: socket.socket, *, far: bool = False) -> None:
        self.came: list[bytes] = []
        self.times: list[float] = []
        self.lane = Lane(connection, self._read, far=far)

    def take(self) -> None:
        for note in self.lane.take():
            note()

    def _read(self, message: bytes, sent_at: float) -> list[Note]:
        self.times.append(sent_at)
        return [lambda: self.came.append(message)]
