"""What the gateway can be told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class GatewayConfig:
    """Configuration of one gateway process."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int = 7070
    """Port to listen on; 0 lets the system choose."""

    models: tuple[Path, ...] = ()
    """Model directories whose tokenizers to load. A verifier is matched to one by tokenizer
    fingerprint; without a match its model takes token ids only."""

    verifiers: tuple[str, ...]
    """Addresses of the verifiers, host:port."""

    drafters: tuple[str, ...] = ()
    """Addresses of the drafters, host:port."""

    store_url: str | None = None
    """Redis or Valkey that remembers which verifier holds a session: redis://host:port/0 or
    unix:///path. Without it this process remembers by itself."""

    session_ttl_s: float = 3600.0
    """Seconds a session is remembered after its last request."""

    max_concurrent: int = 256
    """Requests at a time that generate, tokenize or detokenize; one more is refused with
    RESOURCE_EXHAUSTED."""

    max_generation_s: float = 3600.0
    """Seconds that a generation may take where its client set no deadline or a longer one; then
    it ends with DEADLINE_EXCEEDED."""

    status_interval_ms: int = 250
    """Milliseconds between two load reports of a worker; at least 50."""

    grace_s: float = 30.0
    """Seconds that running generations get after SIGTERM."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    def __post_init__(self) -> None:
        if not self.verifiers:
            raise ConfigError("verifiers: at least one address is needed")
        for name in ("verifiers", "drafters"):
            for address in getattr(self, name):
                if not address.rpartition(":")[2].isdecimal():
                    raise ConfigError(f"{name}: must be host:port, got {address!r}")
        leasts = {
            "max_concurrent": 1,
            "max_generation_s": 1,
            "status_interval_ms": 50,
            "grace_s": 0,
        }
        for name, least in leasts.items():
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: must be in [0, 65535], got {self.port}")
