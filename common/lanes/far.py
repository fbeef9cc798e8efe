"""Lanes between machines: TCP, within TLS where the services speak it.

Who serves streams listens at one more port. Each stream's metadata offers that port and a secret,
which is good for one connection. Who connects says the secret first and is answered with one byte,
or hung up on; then the lane begins. So a lane is as private as the stream that it belongs to.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Self

from common.rpc.server import check_port
from common.tls_config import TlsConfig

OFFER = "paceline-far-lane"
"""Metadata with which a server offers a lane: a port of the same host, and a secret."""

_SECRET_BYTES = 32
_TAKEN = b"+"

_CONNECT_S = 1.0
"""Longest wait of who connects, for each step: where a firewall drops what it does not know, the
stream goes on by gRPC."""

_GREETING_S = 3.0
"""Whoever has not said a secret by then is hung up on."""

_GREETERS = 8
"""Connections that are greeted at once; further ones wait."""

_PAUSE_S = 0.1
"""Before the next connection is let in where that failed, as for want of descriptors."""

_UNANSWERED_MS = 40_000
"""After which what the other end has not confirmed breaks a lane, as gRPC's pings do a stream."""

_KEEP_S, _KEEP_EVERY_S = 30, 10
"""Silence after which the system asks whether the other end is there, and how often: what is on the
way may forget connections that say nothing."""


class FarOffer:
    """A lane that waits for its other end on another machine; see `Offer`.

    Args:
        port: Where it will come.
    """

    far = True

    def __init__(self, port: LanePort) -> None:
        self._port, self.secret = port, secrets.token_bytes(_SECRET_BYTES)
        self._came: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

    @property
    def metadata(self) -> tuple[str, str]:
        """What the stream's initial metadata says of it."""
        return OFFER, f"{self._port.number} {self.secret.hex()}"

    async def accept(self) -> socket.socket:
        """Waits for the other end; only one is let in."""
        return await self._came

    def close(self) -> None:
        """Takes the offer back."""
        self._port.forget(self)
        self._came.cancel()

    def come(self, connection: socket.socket) -> None:
        """The other end is there."""
        if self._came.done():
            connection.close()
        else:
            self._came.set_result(connection)


class LanePort:
    """Where lanes arrive; a context manager within an event loop.

    Args:
        host: Address to listen on.
        number: Port; 0 takes a free one, and `number` is that one then.
        tls: Certificates; read again for each connection. Without any lanes are plaintext.

    Raises:
        StartupError: The address cannot be bound.
    """

    def __init__(self, host: str, number: int, tls: TlsConfig) -> None:
        self._listener = _listen(host, number)
        self.number: int = self._listener.getsockname()[1]
        """Where it listens."""
        self._tls = tls
        self._offers: dict[bytes, FarOffer] = {}
        self._greeters = ThreadPoolExecutor(_GREETERS, "lane greeter")
        self._free = asyncio.Semaphore(_GREETERS)
        self._greetings: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._let_in())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        for task in (self._task, *self._greetings):
            task.cancel()
        await asyncio.gather(self._task, *self._greetings, return_exceptions=True)
        self._listener.close()
        self._greeters.shutdown(wait=False)

    def offer(self) -> FarOffer:
        """A lane for one stream."""
        offer = FarOffer(self)
        self._offers[offer.secret] = offer
        return offer

    def forget(self, offer: FarOffer) -> None:
        """Lets nobody in for an offer any more."""
        self._offers.pop(offer.secret, None)

    async def _let_in(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._free.acquire()
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:
                self._free.release()
                await asyncio.sleep(_PAUSE_S)
                continue
            task = asyncio.create_task(self._greet(connection))
            self._greetings.add(task)
            task.add_done_callback(self._greetings.discard)

    async def _greet(self, connection: socket.socket) -> None:
        loop, guard = asyncio.get_running_loop(), connection.dup()
        # Whatever it is in the middle of: within TLS the socket is another object's.
        late = loop.call_later(_GREETING_S, _hang_up, guard)
        try:
            welcome = partial(self._welcome, connection)
            offer, connection = await loop.run_in_executor(self._greeters, welcome)
        except (OSError, KeyError):  # no TLS, no secret: a stranger
            return
        except asyncio.CancelledError:
            _hang_up(guard)
            raise
        finally:
            late.cancel()
            guard.close()
            self._free.release()
        offer.come(connection)

    def _welcome(self, connection: socket.socket) -> tuple[FarOffer, socket.socket]:
        """Whose connection it is, and that within TLS; on a thread of its own.

        Raises:
            OSError: It speaks no TLS, or it has hung up or been hung up on.
            KeyError: It knows no secret.
        """
        try:
            connection.settimeout(_GREETING_S)
            _settle(connection)
            if self._tls.serves:
                connection = _serving(self._tls).wrap_socket(connection, server_side=True)
            offer = self._offers.pop(_read(connection, _SECRET_BYTES))
            connection.sendall(_TAKEN)
            return offer, connection
        except BaseException:
            connection.close()
            raise


def connect(offer: str, address: str, tls: TlsConfig) -> socket.socket:
    """Takes an offer up; waits for the other end, a second for each step.

    Args:
        offer: As metadata has it.
        address: gRPC target of the stream.
        tls: Certificates; plaintext where no authority is named.

    Raises:
        OSError: It cannot be reached there, or is not who made the offer; says why.
        ValueError: It is no offer, or the address names no host.
    """
    number, _, secret = offer.partition(" ")
    port, said = int(number), bytes.fromhex(secret)
    if not 0 < port < 1 << 16:
        raise ValueError(f"{port} is no port")
    host = address.rpartition("/")[2].rpartition(":")[0].strip("[]")
    if not host:
        raise ValueError(f"{address!r} names no host")
    connection = socket.create_connection((host, port), _CONNECT_S)
    try:
        _settle(connection)
        if tls.ca is not None:
            name = tls.server_name or host
            connection = _calling(tls).wrap_socket(connection, server_hostname=name)
        connection.sendall(said)
        if _read(connection, len(_TAKEN)) != _TAKEN:
            raise ConnectionError("somebody else answers there")
        return connection
    except BaseException:
        connection.close()
        raise


def _listen(host: str, port: int) -> socket.socket:
    check_port(host, port, "--lane-port")
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    both = host == "::" and socket.has_dualstack_ipv6()
    listener = socket.create_server(address[:2], family=family, dualstack_ipv6=both)
    listener.setblocking(False)
    return listener


def _settle(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_NODELAY", 1),
        ("TCP_USER_TIMEOUT", _UNANSWERED_MS),
        ("TCP_KEEPIDLE", _KEEP_S),
        ("TCP_KEEPINTVL", _KEEP_EVERY_S),
    ):
        if hasattr(socket, name):  # not all are everywhere
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _serving(tls: TlsConfig) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, tls)
    if tls.mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _calling(tls: TlsConfig) -> ssl.SSLContext:
    return _context(ssl.PROTOCOL_TLS_CLIENT, tls)  # which checks the server's name


def _context(protocol: int, tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    if tls.ca is not None:
        context.load_verify_locations(tls.ca)
    return context


def _read(connection: socket.socket, count: int) -> bytes:
    """So many bytes.

    Raises:
        ConnectionError: They do not come.
    """
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("hung up on")
        data += more
    return data


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
