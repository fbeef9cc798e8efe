"""How an address is written."""

from __future__ import annotations


def host_port(host: str, port: int) -> str:
    """Returns host:port, an IPv6 host in brackets whether it came in some or not."""
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"
