"""Certificates as configuration, and who may listen or be called where without them."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from common.address import bare
from common.errors import ConfigError

_STORES = ("redis", "rediss", "unix")
"""Schemes of URLs."""


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """One side's certificates. All files are PEM, and are read again when they change."""

    cert: Path | None = None
    """Own certificate, followed by those between it and its authority."""
    key: Path | None = None
    """Private key of `cert`."""
    ca: Path | None = None
    """Authorities: a peer without a certificate of one of them is refused."""
    server_name: str = ""
    """Name that servers' certificates must bear; empty takes the address called. Where workers
    are called by address, one name for all of them."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ConfigError("tls: cert and key go together")

    @property
    def serves(self) -> bool:
        """Whether a server with these speaks TLS."""
        return self.cert is not None

    @property
    def mutual(self) -> bool:
        """Whether a server with these knows its callers by their certificates."""
        return self.serves and self.ca is not None

    @property
    def files(self) -> tuple[Path, ...]:
        """All files named."""
        return tuple(file for file in (self.cert, self.key, self.ca) if file is not None)


def loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare(host)).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, protected: bool, insecure: bool, remedy: str) -> None:
    """Refuses to listen where strangers can come, unless that is said or they are kept out.

    Args:
        host: Address to listen on.
        protected: Whether strangers are kept out.
        insecure: Whether the operator said that they may come.
        remedy: What would keep them out: "tls.cert, tls.key and tls.ca".

    Raises:
        ConfigError: Says what to set.
    """
    if not (protected or insecure or loopback(host)):
        raise ConfigError(
            f"host: {host} can be reached from other machines; set {remedy}, or say --insecure "
            "where everybody who can reach it may use it and read along"
        )


def check_store(url: str | None, *, insecure: bool) -> None:
    """Refuses to ask a store on another machine in plaintext, unless that is said.

    Args:
        url: Where the store is; None for none.
        insecure: Whether the operator said that others may read along.

    Raises:
        ConfigError: Says what to set, but not the URL, which may hold a password.
    """
    if url is None:
        return
    parts = _parsed(url)
    if parts.scheme == "redis" and not (insecure or loopback(parts.hostname or "localhost")):
        raise ConfigError(
            f"store_url: {parts.hostname} can be another machine; use rediss://, or say "
            "--store-insecure where everybody on the way may read along"
        )


def _parsed(url: str) -> SplitResult:
    """The parts of a store's URL; errors of `urlsplit` would quote it."""
    with suppress(ValueError):
        parts = urlsplit(url)
        # Where a password is not escaped, what follows its #, / or ? is no host, and may be no
        # error.
        behind = parts.query if parts.scheme == "unix" else parts.path + parts.query
        whole = not parts.fragment and "@" not in behind
        if whole and parts.scheme in _STORES and parts.port != 0:
            return parts
    raise ConfigError(
        "store_url: must be redis://host:port, rediss://host:port or unix:///path; escape #, /, ? "
        "and @ in a password"
    )
