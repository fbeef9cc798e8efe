"""Channels between Paceline's processes, and the options both ends must agree on."""

from __future__ import annotations

import asyncio

import grpc.aio

from common.rpc.credentials import CertificateFiles
from common.tls_config import TlsConfig

MAX_MESSAGE_BYTES = 64 << 20
KEEPALIVE_MS = 30_000
_PING_TIMEOUT_MS = 10_000

PUBLIC_STREAMS = 1024
"""Calls at once on one connection of anybody's. A stream whose client does not read stays until
its status is read, with one message that waits: this bounds what one connection can leave here."""

WORKER_STREAMS = 1 << 16
"""On one to a worker, where a gateway or verifier has all its calls. One above this would wait
without a word, those that ask how the worker is too; what is too much the worker itself refuses."""

_METADATA_BYTES = 16 << 10
"""Of one call; a token may fill nearly all of it. gRPC's own is 8 KiB, and from there to a second
limit it refuses at random: here both are one."""

# A server kills connections that ping more often than this. It has to stay below the client's
# interval; gRPC's own default of five minutes would end every idle stream with "too many pings".
SERVER_MIN_PING_MS = 10_000

# Both ends ping: a server, too, has streams of a peer that is gone without a word, and unless it
# writes on them nothing else tells it.
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    # Where data flows this one decides; its default is a minute.
    ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
)

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    *_KEEPALIVE,
    # A worker that came back is found within about a second instead of two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name what one attempt may take: TCP, TLS and HTTP/2, also far from here.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Workers are neighbours: an http_proxy in the environment is not meant for them.
    ("grpc.enable_http_proxy", 0),
)

_SERVER_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", SERVER_MIN_PING_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # Without this a second server on a port in use would silently share its connections.
    ("grpc.so_reuseport", 0),
)


def server_options(
    max_receive_bytes: int = MAX_MESSAGE_BYTES, max_streams: int = PUBLIC_STREAMS
) -> tuple[tuple[str, int], ...]:
    """Returns the options of a server that takes requests up to a size, so many at once."""
    return (
        *_SERVER_OPTIONS,
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_concurrent_streams", max_streams),
        # Of calls that wait to be taken more than the first are dropped at random, so that clients
        # see CANCELLED; gRPC's own are 1,000 and 3,000.
        ("grpc.server.max_pending_requests", max_streams),
        ("grpc.server.max_pending_requests_hard_limit", 3 * max_streams),
    )


def open_channel(
    address: str, certificates: CertificateFiles | None = None, server_name: str = ""
) -> grpc.aio.Channel:
    """Opens a channel to a Paceline service; connecting happens on first use.

    Args:
        address: gRPC target: "127.0.0.1:7071".
        certificates: What both sides show each other; None for plaintext.
        server_name: Name that the server's certificate must bear; empty takes the address.
    """
    if certificates is None:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    options: list[tuple[str, int | str]] = [*CLIENT_OPTIONS]
    if server_name:
        options.append(("grpc.ssl_target_name_override", server_name))
    return grpc.aio.secure_channel(address, certificates.channel(), options=options)


class Line:
    """The way to one service; for those who open channels to it again and again.

    Args:
        address: gRPC target.
        tls: Certificates; plaintext where no authority is named.

    Raises:
        StartupError: A certificate cannot be read.
    """

    def __init__(self, address: str, tls: TlsConfig) -> None:
        self._address, self._server_name = address, tls.server_name
        self._certificates = CertificateFiles(tls) if tls.ca is not None else None

    def open(self) -> grpc.aio.Channel:
        """Opens a channel with the certificates as they were when last read."""
        return open_channel(self._address, self._certificates, self._server_name)

    async def renewed(self) -> bool:
        """Reads the certificates again; whether a channel opened from now on shows other ones."""
        if self._certificates is None:
            return False
        return await asyncio.to_thread(self._certificates.renewed)
