"""A slow link: passes bytes on between whoever connects and one address, after a delay.

It delays and does not limit: a message takes half the round trip, however long it is and however
many are on the way. Threads rather than an event loop, whose timers are as coarse as the shortest
round trips of interest.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 1 << 16

Piece = tuple[float, bytes]
"""When to pass it on, by the monotonic clock, and what; nothing is the end of the stream."""


class SlowLink:
    """A listener on this machine, as a context manager.

    Args:
        address: Where the connections lead, `host:port`.
        host: Address of the loopback to listen on.
        port: Port to listen on; 0 takes a free one.
    """

    def __init__(self, address: str, host: str = "127.0.0.1", port: int = 0) -> None:
        target, _, target_port = address.rpartition(":")
        self._target = target.strip("[]"), int(target_port)
        self._listener = socket.create_server((host, port))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self.round_trip_s = 0.0
        """Time added to a message and its answer together; may be set at any time."""
        self._start(self._accept)

    @property
    def address(self) -> str:
        """Where to connect."""
        return "{}:{}".format(*self._listener.getsockname())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            self._closed = True
            sockets, threads = [self._listener, *self._sockets], list(self._threads)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes who waits in it
        for thread in threads:
            thread.join()
        for each in sockets:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                self._connect(near)

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        with self._lock:
            self._sockets += [near, far]
            closed = self._closed
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if closed:  # meanwhile
                one.close()
            else:
                pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
                self._start(self._read, one, pieces)
                self._start(self._write, other, pieces)

    def _read(self, source: socket.socket, pieces: queue.SimpleQueue[Piece]) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(CHUNK_BYTES)
            except OSError:
                data = b""
            pieces.put((time.monotonic() + self.round_trip_s / 2, data))

    def _write(self, sink: socket.socket, pieces: queue.SimpleQueue[Piece]) -> None:
        with suppress(OSError):  # nobody listens any more
            while True:
                due_s, data = pieces.get()
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                time.sleep(max(0.0, due_s - time.monotonic()))
                sink.sendall(data)

    def _start(self, run: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=run, args=args, name="slow link", daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()
