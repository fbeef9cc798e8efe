"""Where traces go, and how many."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from common.config_checks import shares
from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class TracingConfig:
    """Configuration of traces."""

    endpoint: str | None = None
    """OTLP receiver that spans go to, by gRPC: http://host:4317 in plaintext, or
    https://host:4317. None makes no spans."""
    sample_ratio: float = 0.05
    """Share of requests that are traced, from 0 to 1, where the caller has not decided already."""
    round_ratio: float = 0.1
    """Share of a traced request's rounds that get spans of their own, from 0 to 1; verifiers
    only."""

    def __post_init__(self) -> None:
        shares(self, "sample_ratio", "round_ratio", prefix="tracing.", none=True)
        if self.endpoint is not None and not _usable(self.endpoint):
            raise ConfigError(
                f"tracing.endpoint: must be http://host:port or https://host:port, got "
                f"{_without_user(self.endpoint)!r}"
            )


def _usable(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        there = bool(parts.hostname and parts.port)
        return there and parts.scheme in ("http", "https") and "@" not in parts.netloc
    except ValueError:
        return False


def _without_user(endpoint: str) -> str:
    """What may be shown of it: before the host there may be a password."""
    return re.sub(r"^([a-z]+://)?.*@", r"\1…@", endpoint, flags=re.DOTALL)
