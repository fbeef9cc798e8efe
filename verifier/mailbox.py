"""How the engine's thread tells a request's task on the event loop what became of it."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from verifier.sequence import Event

_FEW, _LONGEST = 4, 4
"""Streams from twice as many of which on messages are fewer, and how many times that at most. A
message takes about a millisecond of processors through all services, interrupted passes included:
with 25 a second to each of 16 streams a fifth of two processors."""


class Mailbox:
    """Events of one request, for one task.

    The loop is woken only where the task waits for an event that is overdue, or the last one came:
    what is committed between two messages of a stream takes no time of the loop, which the
    engine's thread would have to wait for.

    Args:
        loop: Of the task.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque()
        self._ended = False
        self._awaited = False
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        """Leaves an event; may be called from any thread."""
        self._events.append(event)  # before the flags are looked at, as `take` sets them before
        if _is_last(event):
            self._ended = True
        if self._awaited or self._ended:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def take(self, not_before: float) -> list[Event]:
        """Waits for events; returns all that are there, up to the one that ends the request.

        Args:
            not_before: When to return, on the loop's clock, unless the last one is there sooner.
        """
        while not self._ended and self._loop.time() < not_before:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(not_before):
                    await self._woken()
        self._awaited = True
        while not self._events:
            await self._woken()
        self._awaited = False
        events: list[Event] = []
        while self._events and not (events and _is_last(events[-1])):
            events.append(self._events.popleft())
        return events

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()


def beat_s(interval_s: float, streams: int) -> float:
    """Seconds between two messages of a stream: a crowd's would take too much of the processor.

    Args:
        interval_s: Of few streams.
        streams: How many there are.
    """
    return interval_s * min(max(streams // _FEW, 1), _LONGEST)


def next_beat(now: float, interval_s: float) -> float:
    """When a stream's next message goes: at the same moment as others', which wakes fewer threads.

    Args:
        now: On the loop's clock, which is often a beat itself.
        interval_s: Seconds between two; the next is half of that away at least. 0 waits for none.
    """
    return (round(now / interval_s) + 1) * interval_s if interval_s else now


def _is_last(event: Event) -> bool:
    return event.finish is not None or event.error is not None
