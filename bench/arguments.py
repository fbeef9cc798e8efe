"""What options of `python -m bench.…` may be: readers for argparse, which says what is wrong."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

from bench.settings import METHODS

T = TypeVar("T")


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from one on."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise ArgumentTypeError(f"must be a whole number, at least {least}, got {text}")
        return number

    return read


def some_seconds(text: str) -> float:
    """Read a time above 0."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise ArgumentTypeError(f"must be seconds, more than 0, got {text}")
    return found


def fraction(text: str) -> float:
    """Read a number from 0 to 1."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise ArgumentTypeError(f"must be in [0, 1], got {text}")
    return found


def known_method(text: str) -> str:
    """Read a method, or a hybrid."""
    if not set(text.split("+")) <= set(METHODS):
        raise ArgumentTypeError(f"must be of {', '.join(METHODS)}, got {text}")
    return text


def several(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a reader of several with commas; what is named twice counts once."""

    def read_all(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(read(word.strip()) for word in text.split(",")))

    return read_all
