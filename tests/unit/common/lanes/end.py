"""One end of a lane, for tests."""

from __future__ import annotations

import socket
import ssl
import threading

from common.inbox import Note
from common.lanes.lane import Lane
from common.tls_config import TlsConfig


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


def connected(tls: TlsConfig | None = None) -> tuple[socket.socket, socket.socket]:
    """Two ends of one connection, within TLS where there are certificates."""
    one, other = socket.socketpair()
    if tls is None:
        return one, other
    assert tls.cert is not None
    assert tls.ca is not None
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tls.cert, tls.key)
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calling.load_verify_locations(tls.ca)
    server = serving.wrap_socket(other, server_side=True, do_handshake_on_connect=False)
    shaking = threading.Thread(target=server.do_handshake)
    shaking.start()
    client = calling.wrap_socket(one, server_hostname="worker")
    shaking.join()
    return client, server
