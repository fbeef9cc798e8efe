"""What a model's `config.json` holds, taken with care: an odd value may mean anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
"""What `config.json` holds."""


def insist(holds: bool, what: str) -> None:
    """Refuses what is not known to be read right.

    Raises:
        ValueError: It does not hold; says what.
    """
    if not holds:
        raise ValueError(what)


def count(number: object) -> int:
    """A number of something.

    Raises:
        ValueError: It is none.
    """
    if type(number) is not int or number < 1:
        raise ValueError(f"{number!r} where a count is expected")
    return number


def is_set(config: Config, setting: str, default: bool | None = None) -> bool:
    """What a setting says that is true or false.

    Raises:
        ValueError: It says something else.
    """
    said = config.get(setting, default)
    insist(isinstance(said, bool), setting)
    return bool(said)
