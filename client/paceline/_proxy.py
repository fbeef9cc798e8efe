"""Which proxy stands between this client and an address: gRPC asks the environment."""

import os
from ipaddress import ip_address, ip_network

from paceline._channel import is_loopback

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def proxy_variable(address: str) -> str | None:
    """Names the variable whose proxy gRPC takes to an address, as far as can be told.

    Args:
        address: The gateway, as `resolve_address` names it.

    Returns:
        The first that is set; None where there is none, where it names no HTTP proxy, for this
        machine, and for what `no_grpc_proxy`, else `no_proxy`, excepts.
    """
    variable, proxy = _first_set(_VARIABLES)
    if is_loopback(address) or not proxy.lower().startswith("http://"):
        return None
    _, excepted = _first_set(_EXCEPTIONS)
    covered = any(_covers(part.strip(), address) for part in excepted.split(","))
    return None if covered else variable


def _first_set(names: tuple[str, ...]) -> tuple[str, str]:
    """Returns the first of the variables that is set, be it to nothing, and its value."""
    name = next((name for name in names if name in os.environ), "")
    return name, os.environ.get(name, "")


def _covers(part: str, address: str) -> bool:
    """Whether a part of `no_proxy`, the end of a name or a network, covers a gRPC target."""
    target = address.rpartition("/")[2].removeprefix("dns:").removeprefix("ipv4:")
    host = target.removeprefix("ipv6:").rpartition(":")[0].strip("[]")
    if part and host.lower().endswith(part.lower()):
        return True
    try:
        return ip_address(host) in ip_network(part, strict=False)
    except ValueError:
        return False
