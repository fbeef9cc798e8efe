"""Lanes between machines: TCP, within TLS where the services speak it.

Who serves streams listens at one more port. Each stream's metadata offers that port and a secret,
which is good for one connection. Who connects says the secret first and is answered with one byte,
or hung up on; it says the same byte, and the lane begins: who has given up does not. So a lane is
as private as the stream that it belongs to.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Self

from common.address import any_address, bare, check_port
from common.errors import StartupError
from common.lanes.connection import calling, serving, settle
from common.tls_config import TlsConfig

_log = logging.getLogger(__name__)

OFFER = "paceline-far-lane"
"""Metadata with which a server offers a lane: a port of the same host, and a secret."""

_SECRET_BYTES = 32
_TAKEN = b"+"

_CONNECT_S = 1.0
"""Longest wait for a connection to each address of a host: where a firewall drops what it does not
know, the stream goes on by gRPC."""

_GREETING_S = 3.0
"""Whoever has not said a secret by then is hung up on."""

_WELCOME_S = 4.0
"""Longest wait of who connects for each answer: others, who say nothing, may be greeted first."""

_GREETERS = 8
"""Connections that are greeted at once; further ones wait."""

_TOLD_EVERY_S = 10.0
"""The log has no more than one stranger in so long."""

_PAUSE_S = 0.1
"""Before the next connection is let in where that failed, as for want of descriptors."""


class FarOffer:
    """A lane that waits for its other end on another machine; see `Offer`.

    Args:
        port: Where it will come.
    """

    far = True

    def __init__(self, port: LanePort) -> None:
        self._port, self.secret = port, secrets.token_bytes(_SECRET_BYTES)
        self._came: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._taken = False

    @property
    def metadata(self) -> tuple[str, str]:
        """What the stream's initial metadata says of it."""
        return OFFER, f"{self._port.number} {self.secret.hex()}"

    async def accept(self) -> socket.socket:
        """Waits for the other end; only one is let in."""
        connection = await self._came
        self._taken = True
        return connection

    def close(self) -> None:
        """Takes the offer back."""
        self._port.forget(self)
        if not self._came.cancel() and not self._came.cancelled() and not self._taken:
            self._came.result().close()

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
        self._strangers, self._told_at = 0, -math.inf  # since the last of whom the log was told

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._let_in())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.sleep(0)  # greetings that have only just begun close what they have
        for task in self._greetings:
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
        loop = asyncio.get_running_loop()
        try:
            with closing(connection.dup()) as guard:  # within TLS the socket is another object's
                welcome = self._greeters.submit(self._welcome, connection, loop)

                def hang_up() -> None:
                    if not welcome.done():  # whatever it is in the middle of
                        _hang_up(guard)

                late = loop.call_later(_GREETING_S, hang_up)
                try:
                    await asyncio.wrap_future(welcome)
                except asyncio.CancelledError:
                    _hang_up(guard)
                    if welcome.cancelled():  # it never began
                        connection.close()
                    raise
                finally:
                    late.cancel()
        except (OSError, KeyError, RuntimeError, StartupError) as error:
            connection.close()
            self._tell(error)
        finally:
            self._free.release()

    def _welcome(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Hands a connection to whoever offered it; on a thread of its own.

        Raises:
            OSError: It speaks no TLS, or it has hung up or been hung up on.
            KeyError: It knows no secret.
            StartupError: A certificate of our own cannot be read.
        """
        context = serving(self._tls) if self._tls.serves else None
        try:
            connection.settimeout(_GREETING_S)
            settle(connection)
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            offer = self._offers.pop(_read(connection, _SECRET_BYTES))
            connection.sendall(_TAKEN)
            _expect(connection, _TAKEN)
            loop.call_soon_threadsafe(offer.come, connection)
        except BaseException:
            connection.close()
            raise

    def _tell(self, error: Exception) -> None:
        """Logs who was not let in: the latest, and how many."""
        self._strangers += 1
        now = time.monotonic()
        if now >= self._told_at + _TOLD_EVERY_S:
            reason = "it knows no secret" if isinstance(error, KeyError) else str(error)
            level = logging.WARNING if isinstance(error, StartupError) else logging.INFO
            facts = {"reason": reason, "since_the_last": self._strangers}
            _log.log(level, "a lane was not taken up", extra=facts)
            self._strangers, self._told_at = 0, now


def connect(offer: str, address: str, tls: TlsConfig) -> socket.socket:
    """Takes an offer up; waits for the other end, seconds for each step.

    Args:
        offer: As metadata has it.
        address: gRPC target of the stream: `host:port`, or that after `dns:///`.
        tls: Certificates; plaintext where no authority is named.

    Raises:
        OSError: It cannot be reached there, or is not who made the offer; says why.
        ValueError: It is no offer, or the address names no host.
        StartupError: A certificate of our own cannot be read.
    """
    number, _, secret = offer.partition(" ")
    port, said = int(number), bytes.fromhex(secret)
    if not 0 < port < 1 << 16:
        raise ValueError(f"{port} is no port")
    if len(said) != _SECRET_BYTES:  # nor does anybody say what a stranger would have said
        raise ValueError(f"a secret of {len(said)} bytes")
    host = bare(address.rpartition("/")[2].rpartition(":")[0])
    if not host:
        raise ValueError(f"{address!r} names no host")
    context = calling(tls) if tls.ca is not None else None
    connection = socket.create_connection((host, port), _CONNECT_S)
    try:
        connection.settimeout(_WELCOME_S)
        settle(connection)
        if context is not None:
            name = tls.server_name or host
            connection = context.wrap_socket(connection, server_hostname=name)
        connection.sendall(said)
        _expect(connection, _TAKEN)
        connection.sendall(_TAKEN)
        return connection
    except BaseException:
        connection.close()
        raise


async def reach(offer: str, address: str, tls: TlsConfig) -> socket.socket:
    """`connect`, on another thread; what comes of it is closed where nobody waits any more."""
    loop = asyncio.get_running_loop()
    reached = loop.run_in_executor(None, connect, offer, address, tls)
    try:
        await asyncio.wait((reached,))  # shielded, an error that nobody waits for would be told
    except asyncio.CancelledError:
        reached.add_done_callback(_close)
        raise
    return reached.result()


def _close(reached: asyncio.Future[socket.socket]) -> None:
    if not reached.cancelled() and reached.exception() is None:
        reached.result().close()


def _listen(host: str, port: int) -> socket.socket:
    """Listens as gRPC does."""
    check_port(host, port, "--lane-port")
    host = any_address(host)
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, dualstack_ipv6=both)
    except OSError as error:
        raise StartupError(f"cannot listen on port {port} of {host}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


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


def _expect(connection: socket.socket, words: bytes) -> None:
    """Reads what is to be said.

    Raises:
        ConnectionError: Something else is, or nothing.
    """
    if _read(connection, len(words)) != words:
        raise ConnectionError("somebody else answers there")


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
