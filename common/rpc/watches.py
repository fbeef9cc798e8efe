"""Streams that say again and again how things are: how often, and until when."""

from __future__ import annotations

import asyncio
import contextlib

from common.errors import InvalidArgument

_DEFAULT_INTERVAL_MS = 1000
_LEAST_INTERVAL_MS = 50


def interval_s(asked_ms: int) -> float:
    """Seconds between two messages of a stream, as its caller asks for; 0 leaves it open.

    Raises:
        InvalidArgument: Too often.
    """
    interval_ms = asked_ms or _DEFAULT_INTERVAL_MS
    if interval_ms < _LEAST_INTERVAL_MS:
        problem = f"must be 0 or at least {_LEAST_INTERVAL_MS}, got {interval_ms}"
        raise InvalidArgument("interval_ms", problem)
    return interval_ms / 1e3


class Watches:
    """The streams of one service; on the event loop."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    @property
    def on(self) -> bool:
        """Whether they go on."""
        return not self._over.is_set()

    def end(self) -> None:
        """Ends all of them, which would otherwise hold the server to its last second."""
        self._over.set()

    async def pause(self, seconds: float) -> None:
        """Waits so long, or until the end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
