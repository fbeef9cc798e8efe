"""Checks that configurations share."""

from __future__ import annotations

from typing import Any

from common.errors import ConfigError


def check_ports(**ports: int | None) -> None:
    """Checks the ports of a configuration, by field.

    Raises:
        ConfigError: One is no port, or the same as one before it; says which.
    """
    taken = set()
    for name, port in ports.items():
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"{name}: must be in [0, 65535], got {port}")
        if port in taken:
            raise ConfigError(f"{name}: {port} is another port of the service already")
        if port:
            taken.add(port)


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


def shares(config: Any, *names: str, prefix: str = "", none: bool = False) -> None:
    """Checks fields of a configuration that are parts of a whole.

    Args:
        config: The dataclass.
        *names: Of the fields.
        prefix: Put before a field's name in the error: "engine.".
        none: Whether nothing of it is a part, too.

    Raises:
        ConfigError: A field is not above 0, or not at least 0, or above 1; says which.
    """
    for name in names:
        value = getattr(config, name)
        if not (0 < value <= 1 or (none and value == 0)):  # not a number is refused, too
            raise ConfigError(
                f"{prefix}{name}: must be in {'[' if none else '('}0, 1], got {value}"
            )
