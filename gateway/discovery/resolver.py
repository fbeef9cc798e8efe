"""The interface of everything that finds workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Report = Callable[[frozenset[str]], None]
"""Takes all addresses there are now, host:port each."""


class Resolver(Protocol):
    """Finds the workers of one target."""

    async def follow(self, report: Report) -> None:
        """Reports the addresses at once and whenever they change, until cancelled.

        A source that is away changes nothing: the workers last reported are probably still
        there, and those that are not show it on their own streams. What `report` refuses, by an
        error that goes through, is reported again by the next call.
        """
