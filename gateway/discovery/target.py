"""How a configuration names workers: one address, a DNS name, or a Kubernetes Service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import ConfigError
from common.tls_config import loopback

_OTHERS = "dns:host:port and kubernetes:[namespace/]service:port are understood, too"


@dataclass(frozen=True, kw_only=True)
class StaticTarget:
    """A worker at a fixed address: `host:port`."""

    address: str
    """host:port."""


@dataclass(frozen=True, kw_only=True)
class DnsTarget:
    """A worker at every address of a name: `dns:host:port`."""

    host: str
    """Name to look up."""
    port: int
    """Port of every worker."""


@dataclass(frozen=True, kw_only=True)
class KubernetesTarget:
    """A worker at every ready endpoint of a Service: `kubernetes:[namespace/]service:port`."""

    namespace: str | None
    """Namespace of the Service; None for the pod's own."""
    service: str
    """Name of the Service."""
    port: str
    """Name of one of its ports, or the number that the pods listen on."""


Target = StaticTarget | DnsTarget | KubernetesTarget


def parse_targets(field: str, entries: Sequence[str]) -> tuple[Target, ...]:
    """Reads the entries of `verifiers` or `drafters`.

    Args:
        field: Name of the field, for the error.
        entries: What it holds.

    Raises:
        ConfigError: One is in none of the three forms, or its port is no port.
    """
    return tuple(_parse(field, text) for text in entries)


def remote(target: Target) -> bool:
    """Whether calls to a target may leave this machine."""
    return not (isinstance(target, StaticTarget) and loopback(target.address.rpartition(":")[0]))


def _parse(field: str, text: str) -> Target:
    port = text.rpartition(":")[2]
    if port.isdecimal() and not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{field}: a port must be in [1, 65535], got {text!r}")
    scheme, _, rest = text.partition(":")
    # A host may be called "dns": only a second colon makes the first one a scheme's.
    if scheme == "dns" and ":" in rest:
        return _dns(field, text, rest)
    if scheme == "kubernetes" and ":" in rest:
        return _kubernetes(field, text, rest)
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{field}: must be host:port, got {text!r}; {_OTHERS}")
    bracketed = host.startswith("[") and host.endswith("]")
    if "/" in host or (":" in host and not bracketed):
        raise ConfigError(
            f"{field}: must be host:port, where the host is a name, an IPv4 address or an IPv6 "
            f"address in brackets, got {text!r}; {_OTHERS}"
        )
    return StaticTarget(address=text)


def _dns(field: str, text: str, rest: str) -> DnsTarget:
    host, _, port = rest.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ConfigError(f"{field}: must be dns:host:port, got {text!r}")
    return DnsTarget(host=host, port=int(port))


def _kubernetes(field: str, text: str, rest: str) -> KubernetesTarget:
    name, _, port = rest.rpartition(":")
    namespace, slash, service = name.rpartition("/")
    if not service or not port or (slash and not namespace) or "/" in namespace:
        message = f"must be kubernetes:[namespace/]service:port, got {text!r}"
        raise ConfigError(f"{field}: {message}")
    return KubernetesTarget(namespace=namespace or None, service=service, port=port)
