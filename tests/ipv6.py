"""For tests that listen on an address of IPv6."""

from __future__ import annotations

import socket

import pytest


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback, and not only the code for it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
