"""What programs of `python -m bench.…` share: readers of options for argparse, and how to end."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from paceline import PacelineError as ClientError

from bench.settings import METHODS, PEERS
from common.commands import INTERRUPTED
from common.errors import PacelineError

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


def within(low: float, high: float) -> Callable[[str], float]:
    """Return a reader of numbers from one to another."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not low <= found <= high:
            raise ArgumentTypeError(f"must be in [{low:g}, {high:g}], got {text}")
        return found

    return read


def known_method(text: str) -> str:
    """Read a method, or a hybrid."""
    return _of(METHODS, text, text.split("+"))


def known_peer(text: str) -> str:
    """Read a contender's name."""
    return _of(PEERS, text, [text])


def _of(known: Collection[str], text: str, parts: Sequence[str]) -> str:
    if not set(parts) <= set(known):
        raise ArgumentTypeError(f"must be of {', '.join(known)}, got {text}")
    return text


def several(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a reader of several with commas; what is named twice counts once."""

    def read_all(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(read(word.strip()) for word in text.split(",") if word.strip()))

    return read_all


@contextmanager
def ending_well() -> Iterator[None]:
    """End the program with a line about what cannot be done, or with none where it is told to.

    Raises:
        SystemExit: So it is.
    """
    try:
        yield
    except (PacelineError, ClientError, OSError) as problem:
        sys.exit(f"error: {problem}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
