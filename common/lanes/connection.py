"""TCP connections of lanes: how the system keeps them, and TLS as gRPC would speak it."""

from __future__ import annotations

import socket
import ssl

from common.errors import StartupError
from common.tls_config import TlsConfig

_UNANSWERED_MS = 40_000
"""After which what the other end has not confirmed breaks a lane: what gRPC's pings take at most to
break a stream."""

_KEEP_S, _KEEP_EVERY_S = 30, 10
"""Silence after which the system asks whether the other end is there, and how often: what is on the
way may forget connections that say nothing."""


def settle(connection: socket.socket) -> None:
    """Has short messages go at once, and a connection that leads nowhere break."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_NODELAY", 1),
        ("TCP_USER_TIMEOUT", _UNANSWERED_MS),
        ("TCP_KEEPIDLE", _KEEP_S),
        ("TCP_KEEPINTVL", _KEEP_EVERY_S),
    ):
        if hasattr(socket, name):  # not all are everywhere
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def serving(tls: TlsConfig) -> ssl.SSLContext:
    """TLS of who is called, which wants the caller's certificate where the service does.

    Raises:
        StartupError: A certificate cannot be read.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, tls)
    if tls.mutual:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def calling(tls: TlsConfig) -> ssl.SSLContext:
    """TLS of who calls, which checks the other end's certificate and name.

    Raises:
        StartupError: A certificate cannot be read.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, tls)


def _context(protocol: int, tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC: an authority need be no root
    try:
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except OSError as error:
        raise StartupError(f"certificates cannot be read: {error}") from error
    return context
