"""Where the gateway is, and the channel to it."""

import os
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import grpc

from paceline._requests import text
from paceline._version import __version__
from paceline.errors import ArgumentError

if TYPE_CHECKING:
    from paceline._security import Security

DEFAULT_PORT = 7070
DEFAULT_ADDRESS = f"localhost:{DEFAULT_PORT}"
ADDRESS_VARIABLE = "PACELINE_ADDRESS"

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# The gateway takes pings down to every 10 s; more often than it allows, it hangs up.
_KEEPALIVE_MS = 30_000
_PING_TIMEOUT_MS = 10_000
_HOST = re.compile(r"(?:ipv[46]:)?\[?(?P<host>[^\]]*?)\]?(?::\d+)?")
_HOST_ALONE = re.compile(r"\[[^\[\]/]+\]|[^\[\]:/,]+")


def resolve_address(address: str | None) -> str:
    """Returns the address given, else the environment's, else this machine's gateway.

    Args:
        address: `host:port`, a host alone for the default port, or any gRPC target, white space
            around it left out; or None.

    Raises:
        TypeError: The address is not a string.
        ArgumentError: It is a web address, or not valid Unicode.
    """
    if address is None:
        address = os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    address = text("address", address).strip()
    if address.startswith(("http://", "https://")) or not address:
        raise ArgumentError(
            "address", f'must be host:port, as "{DEFAULT_ADDRESS}", got {address!r}'
        )
    return _with_port(address)


def _with_port(address: str) -> str:
    """Completes a host that stands alone, for which gRPC would take 443; leaves all else."""
    if _is_ipv6(address):
        address = f"[{address}]"
    return f"{address}:{DEFAULT_PORT}" if _HOST_ALONE.fullmatch(address) else address


def _is_ipv6(address: str) -> bool:
    try:
        return ip_address(address).version == 6
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Whether an address, and every other that a list of them names, is on this machine."""
    return address.startswith("unix:") or all(map(_is_this_machine, address.split(",")))


def _is_this_machine(target: str) -> bool:
    found = _HOST.fullmatch(target)
    if found is None:
        return False
    try:
        return found["host"] == "localhost" or ip_address(found["host"]).is_loopback
    except ValueError:  # another name
        return False


def connect(address: str, security: "Security", api: Any = grpc) -> Any:
    """Returns a channel; nothing is connected before its first call.

    Args:
        address: The gateway, as `resolve_address` names it.
        security: Says who the client is and whom it trusts.
        api: `grpc`, or `grpc.aio` for a channel of the running event loop.
    """
    options = [*channel_options(address), *security.options]
    if (credentials := security.credentials) is None:
        return api.insecure_channel(address, options=options)
    return api.secure_channel(address, credentials, options=options)


def channel_options(address: str) -> list[tuple[str, int | str]]:
    """Returns the options for a channel, sync or asyncio, to a gateway at `address`."""
    options: list[tuple[str, int | str]] = [
        ("grpc.primary_user_agent", f"paceline/{__version__}"),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        # Where data flows this one decides; its default is a minute.
        ("grpc.http2.ping_timeout_ms", _PING_TIMEOUT_MS),
        # A long prefill is silent: without this, pings stop after the second one.
        ("grpc.http2.max_pings_without_data", 0),
        # A gateway that is back is found within seconds instead of two minutes.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # Despite its name what one attempt may take: TCP, TLS and HTTP/2, also far from here.
        ("grpc.min_reconnect_backoff_ms", 5_000),
    ]
    if is_loopback(address):
        # gRPC obeys http_proxy even for this machine, where a proxy never leads.
        options.append(("grpc.enable_http_proxy", 0))
    return options
