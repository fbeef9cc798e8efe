"""Where a server listens: how that is written, what it stands for, and whether it is free."""

from __future__ import annotations

import errno
import socket

from common.errors import StartupError


def host_port(host: str, port: int) -> str:
    """Returns host:port, an IPv6 host in brackets whether it came in some or not."""
    return f"[{bare(host)}]:{port}" if ":" in host else f"{host}:{port}"


def bare(host: str) -> str:
    """Returns a host as sockets take it: without the brackets that one of IPv6 may have."""
    return host.strip("[]")


def any_address(host: str, *, asks: bool = True) -> str:
    """Returns where to listen for what gRPC takes a host for: any address of one family, where a
    socket may be of both, for all of both.

    Args:
        host: Address to listen on, in brackets or not.
        asks: Whether who listens asks for both, or takes what sockets are made as
            (net.ipv6.bindv6only).
    """
    if host != "0.0.0.0" or not socket.has_dualstack_ipv6():
        return bare(host)
    with socket.socket(socket.AF_INET6) as made:
        both = asks or not made.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return "::" if both else host


def check_port(host: str, port: int, flag: str = "--port") -> None:
    """Tries an address before anything slow is done: gRPC's own error does not say why it failed.

    Args:
        host: Address to bind.
        port: Port to bind.
        flag: Which setting another port is chosen by.

    Raises:
        StartupError: It cannot be bound; says why.
    """
    try:
        found = socket.getaddrinfo(bare(host), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"port {port} on {host} is already in use; stop its owner or choose another "
                f"with {flag}"
            ) from None
        raise StartupError(f"cannot listen on port {port} of {host}: {error.strerror}") from None
