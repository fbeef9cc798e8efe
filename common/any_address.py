"""The address that stands for all of a machine's."""

from __future__ import annotations

import socket


def any_address(host: str) -> str:
    """Returns where to listen for what gRPC takes a host for: any address of one family, where a
    socket may be of both, for all of both.

    Args:
        host: Address to listen on.
    """
    return "::" if host == "0.0.0.0" and socket.has_dualstack_ipv6() else host
