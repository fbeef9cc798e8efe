"""The address that stands for all of a machine's."""

from __future__ import annotations

import socket


def any_address(host: str, *, asks: bool = True) -> str:
    """Returns where to listen for what gRPC takes a host for: any address of one family, where a
    socket may be of both, for all of both.

    Args:
        host: Address to listen on.
        asks: Whether who listens asks for both, or takes what sockets are made as
            (net.ipv6.bindv6only).
    """
    if host != "0.0.0.0" or not socket.has_dualstack_ipv6():
        return host
    with socket.socket(socket.AF_INET6) as made:
        both = asks or not made.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return "::" if both else host
