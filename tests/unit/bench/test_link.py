from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench.link import SlowLink


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that answers what it is told, in order; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=answer, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    accepting.join()
    listener.close()
    for thread in threads:
        thread.join()


def connect(link: SlowLink) -> socket.socket:
    host, port = link.address.split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(30)
    return connection


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data


def test_bytes_arrive_in_order_and_late(echo: str) -> None:
    with SlowLink(echo) as link, connect(link) as connection:
        for round_trip_s in (0.0, 0.05, 0.02):
            link.round_trip_s = round_trip_s
            started_s = time.monotonic()
            connection.sendall(b"question")
            assert read(connection, 8) == b"question"
            assert time.monotonic() - started_s >= round_trip_s


def test_it_delays_and_does_not_limit(echo: str) -> None:
    """Many messages on the way at once take the time of one, not one each."""
    with SlowLink(echo) as link, connect(link) as connection:
        link.round_trip_s = 0.5
        started_s = time.monotonic()
        sent = b""
        for index in range(40):
            message = bytes([index]) * 500
            connection.sendall(message)
            sent += message
            time.sleep(0.001)
        assert read(connection, len(sent)) == sent
        assert 0.5 <= time.monotonic() - started_s < 40 * 0.5


def test_connections_are_apart(echo: str) -> None:
    with SlowLink(echo) as link, connect(link) as one, connect(link) as other:
        one.sendall(b"one")
        other.sendall(b"other")
        assert read(other, 5) == b"other"
        assert read(one, 3) == b"one"


def test_an_end_is_passed_on(echo: str) -> None:
    with SlowLink(echo) as link, connect(link) as connection:
        connection.sendall(b"last")
        connection.shutdown(socket.SHUT_WR)
        assert read(connection, 4) == b"last"
        assert connection.recv(1) == b""


def test_closing_ends_connections(echo: str) -> None:
    with SlowLink(echo) as link:
        connection = connect(link)
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
    with connection:
        assert connection.recv(1) == b""


def test_nobody_at_the_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with SlowLink(address) as link, connect(link) as connection:
        assert connection.recv(1) == b""
