"""A service's gRPC server from start to drain, the same for every service.

Owns options, the error interceptor, health, reflection, binding and signals; what is served
belongs to the service itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection

from common.address import check_port, host_port
from common.errors import StartupError
from common.rpc.channel import MAX_MESSAGE_BYTES, PUBLIC_STREAMS, server_options
from common.rpc.credentials import CertificateFiles
from common.rpc.errors import ErrorInterceptor
from common.rpc.health import SERVICE as HEALTH_SERVICE
from common.rpc.health import Health
from common.rpc.probes import probe_server
from common.tls_config import TlsConfig

log = logging.getLogger(__name__)

Register = Callable[[grpc.aio.Server], Sequence[str]]


class Retirement:
    """Lets a service begin its own drain; a later word counts only where it leaves no time.

    Attributes:
        grace_s: Seconds that running calls get; None for the service's default.
        at_once: Set where a drain that is under way is to end now.
    """

    def __init__(self) -> None:
        self.grace_s: float | None = None
        self.at_once = asyncio.Event()
        self._begun = asyncio.Event()

    def begin(self, grace_s: float | None = None) -> None:
        """Begins the drain, with `grace_s` for running calls or the service's default.

        Ends one that has begun where `grace_s` is 0.
        """
        if not self._begun.is_set():
            self.grace_s = grace_s
            self._begun.set()
        elif grace_s == 0:
            self.at_once.set()

    async def begun(self) -> None:
        """Returns when the drain begins."""
        await self._begun.wait()


class RunningServer:
    """A server that accepts calls.

    Attributes:
        port: The port it is bound to.
        health: What its health service answers.
        health_port: The port that answers probes; None for none.
    """

    def __init__(self, server: grpc.aio.Server, port: int, health: Health) -> None:
        self.port = port
        self.health = health
        self.health_port: int | None = None
        self._server = server
        self._probes: grpc.aio.Server | None = None

    async def answer_probes(self, host: str, port: int) -> None:
        """Starts the plaintext server for health checks.

        Raises:
            StartupError: The address cannot be bound.
        """
        probes = probe_server(self.health)
        self.health_port = _bind(probes, host, port, flag="--health-port")
        await probes.start()
        self._probes = probes

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuses new calls, gives running ones `grace_s` seconds, then ends them."""
        await self._server.stop(grace_s)
        if self._probes is not None:  # last: a probe that fails meanwhile would mean a crash
            await self._probes.stop(None)


async def start(
    *,
    register: Register,
    host: str,
    port: int,
    health: Health | None = None,
    max_receive_bytes: int = MAX_MESSAGE_BYTES,
    max_streams: int = PUBLIC_STREAMS,
    tls: TlsConfig | None = None,
) -> RunningServer:
    """Starts a server.

    Args:
        register: Adds the servicers and returns the full names of their services.
        host: Address to bind.
        port: Port to bind; 0 lets the system choose.
        health: The health to answer; by default SERVING.
        max_receive_bytes: Largest request that is taken.
        max_streams: Calls at once on one connection.
        tls: Certificates; without any the server speaks plaintext.

    Returns:
        The running server.

    Raises:
        StartupError: The address cannot be bound, or a certificate cannot be read.
    """
    credentials = CertificateFiles(tls).server() if tls and tls.serves else None
    server = grpc.aio.server(
        interceptors=[ErrorInterceptor()], options=server_options(max_receive_bytes, max_streams)
    )
    services = list(register(server))
    health = health or Health()
    health.attach(server, services)
    reflection.enable_server_reflection(
        (*services, HEALTH_SERVICE, reflection.SERVICE_NAME), server
    )
    bound = _bind(server, host, port, credentials)
    await server.start()
    return RunningServer(server, bound, health)


async def serve(
    *,
    register: Register,
    host: str,
    port: int,
    grace_s: float,
    health: Health | None = None,
    max_receive_bytes: int = MAX_MESSAGE_BYTES,
    max_streams: int = PUBLIC_STREAMS,
    on_ready: Callable[[int], None] | None = None,
    on_drain: Callable[[], Awaitable[None]] | None = None,
    retirement: Retirement | None = None,
    health_port: int | None = None,
    tls: TlsConfig | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal stops at once.

    Args:
        register: Adds the servicers and returns the full names of their services.
        host: Address to bind.
        port: Port to bind; 0 lets the system choose.
        grace_s: Seconds that running calls get from the signal on, `on_drain` included.
        health: The health to answer; by default SERVING.
        max_receive_bytes: Largest request that is taken.
        max_streams: Calls at once on one connection.
        on_ready: Called with the bound port once calls are accepted.
        on_drain: Awaited between NOT_SERVING and the refusal of new calls.
        retirement: Begins the drain without a signal, may say another grace period, and may end
            it.
        health_port: Port of a plaintext server for health checks alone; None starts none.
        tls: Certificates; without any the server speaks plaintext.

    Raises:
        StartupError: The address cannot be bound, or a certificate cannot be read.
    """
    retirement = retirement or Retirement()
    if health_port is not None:
        check_port(host, health_port, "--health-port")
    with _signals(retirement):
        server = await start(
            register=register,
            host=host,
            port=port,
            health=health,
            max_receive_bytes=max_receive_bytes,
            max_streams=max_streams,
            tls=tls,
        )
        try:
            if health_port is not None:
                await server.answer_probes(host, health_port)
            if on_ready is not None:
                on_ready(server.port)
        except BaseException:
            await server.stop()
            raise
        await retirement.begun()
        if retirement.grace_s is not None:
            grace_s = retirement.grace_s
        log.info("draining", extra={"grace_s": grace_s})
        draining = asyncio.ensure_future(_drain(server, grace_s, on_drain))
        hurry = asyncio.ensure_future(retirement.at_once.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not draining.done():
            log.warning("stopping at once")
            draining.cancel()
            await server.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await draining
    log.info("stopped")


def announce(service: str, port: int) -> None:
    """Prints the one line on stdout by which a parent process learns the port."""
    print(json.dumps({"event": "serving", "service": service, "port": port}), flush=True)


async def _drain(
    server: RunningServer, grace_s: float, on_drain: Callable[[], Awaitable[None]] | None
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + grace_s
    server.health.drain()
    if on_drain is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await on_drain()
    await server.stop(max(0.0, deadline - loop.time()))


@contextlib.contextmanager
def _signals(retirement: Retirement) -> Iterator[None]:
    """The first signal begins the drain, or joins one; the second ends it."""
    arrivals = itertools.count()

    def arrived() -> None:
        retirement.begin(0.0 if next(arrivals) else None)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _bind(
    server: grpc.aio.Server,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
    flag: str = "--port",
) -> int:
    check_port(host, port, flag)
    address = host_port(host, port)
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {address}: {error}") from error
