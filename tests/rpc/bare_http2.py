"""A server that speaks HTTP/2 and is no gateway: a proxy to one, or some other web server."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

GRPC = {":status": "200", "content-type": "application/grpc"}

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING = 0, 1, 3, 4, 6
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Stream:
    """A request that has come whole, and the way back.

    Args:
        write: Sends bytes.
        number: The stream's.
        request: What was asked, as bytes of the message.
    """

    def __init__(self, write: Callable[[bytes], Any], number: int, request: bytes) -> None:
        self._write, self._number = write, number
        self.request = request

    def headers(self, fields: Mapping[str, str], *, end: bool = False) -> None:
        """Sends headers; after messages they are trailers."""
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._send(_HEADERS, _END_HEADERS | end * _END_STREAM, block)

    def message(self, message: Any) -> None:
        """Sends a message of gRPC."""
        body = message.SerializeToString()
        self._send(_DATA, 0, b"\0" + len(body).to_bytes(4, "big") + body)

    def page(self, body: bytes) -> None:
        """Sends what is no message, and ends the answer."""
        self._send(_DATA, _END_STREAM, body)

    def reset(self, code: int) -> None:
        """Ends the answer in its middle."""
        self._send(_RST_STREAM, 0, code.to_bytes(4, "big"))

    def _send(self, kind: int, flags: int, payload: bytes) -> None:
        self._write(_frame(kind, flags, self._number, payload))


@contextmanager
def bare_http2(answer: Callable[[Stream], None]) -> Iterator[str]:
    """Yields the address of a server, until the block ends.

    Args:
        answer: Called for each request, in a thread of its connection.
    """
    connections: list[socket.socket] = []

    class Connection(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.read(len(_PREFACE))
            self.wfile.write(_frame(_SETTINGS, 0, 0, b""))
            bodies: dict[int, bytes] = defaultdict(bytes)
            for kind, flags, number, payload in _frames(self.rfile):
                if kind in (_SETTINGS, _PING) and not flags & _ACK:
                    reply = payload if kind == _PING else b""
                    self.wfile.write(_frame(kind, _ACK, 0, reply))
                elif kind == _DATA:
                    bodies[number] += payload
                    if flags & _END_STREAM:
                        answer(Stream(self.wfile.write, number, bodies.pop(number)[5:]))

    class Server(socketserver.ThreadingTCPServer):
        def process_request(self, request: Any, client_address: Any) -> None:
            connections.append(request)
            super().process_request(request, client_address)

    with Server(("127.0.0.1", 0), Connection) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
            for connection in connections:
                with suppress(OSError):  # it has ended
                    connection.shutdown(socket.SHUT_RDWR)


def _frames(stream: BinaryIO) -> Iterator[tuple[int, int, int, bytes]]:
    while len(head := stream.read(9)) == 9:
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        yield kind, flags, int.from_bytes(head[5:], "big"), stream.read(length)


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + number.to_bytes(4, "big") + payload
    )


def _text(text: str) -> bytes:
    """Writes a short string as HPACK (RFC 7541) takes it unpacked."""
    return bytes([len(text)]) + text.encode()
