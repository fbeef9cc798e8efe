"""What every process that runs a model can be told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from common.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Configuration that verifiers and drafters share."""

    model: str
    """Model: a directory in Hugging Face form, or a hub repository."""
    name: str = ""
    """Name to go by; empty takes the directory's name."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of the weights; auto takes what the files say."""
    device: str = "auto"
    """torch device: auto, cpu, cuda, cuda:1, …"""
    threads: int = 0
    """CPU threads of one forward pass; 0 takes torch's default."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int
    """Port to listen on; 0 takes a free one."""
    grace_s: float
    """Time what runs gets when the process is told to stop, in seconds."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is logged."""

    def __post_init__(self) -> None:
        at_least(self, threads=0, grace_s=0)
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: must be in [0, 65535], got {self.port}")


def at_least(config: Any, prefix: str = "", **least: float) -> None:
    """Checks fields of a configuration.

    Args:
        config: The dataclass.
        prefix: Put before a field's name in the error: "engine.".
        **least: The smallest value allowed, by field.

    Raises:
        ConfigError: A field is smaller; says which.
    """
    for name, limit in least.items():
        value = getattr(config, name)
        if not value >= limit:  # not a number is refused, too
            raise ConfigError(f"{prefix}{name}: must be at least {limit}, got {value}")
