"""What every service can be told at its start: where it listens, how it ends and what it logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.config_checks import at_least, check_ports


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """Configuration that all services share."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int
    """Port to listen on; 0 takes a free one."""
    health_port: int | None = None
    """Port of a second server, plaintext, that answers health checks (liveness, readiness) and
    nothing else; none starts none."""
    metrics_port: int | None = None
    """Port on which Prometheus reads metrics, in plaintext; none serves none."""
    insecure: bool = False
    """Listen beyond this machine without knowing the callers."""
    grace_s: float
    """Time that what runs gets when the process is told to stop, in seconds."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    def __post_init__(self) -> None:
        at_least(self, grace_s=0)
        check_ports(port=self.port, health_port=self.health_port, metrics_port=self.metrics_port)
