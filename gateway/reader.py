"""The client's end of a stream: it has to read, or it is let go."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import grpc.aio

from common.errors import ResourceExhausted

_HELD_S = 0.1
"""What a message that waits for company waits at most. One takes some 0.15 ms of processors, here
and at the client, whatever is in it."""


class Reader:
    """Hands messages to one client, one at a time.

    What it does not read fills the windows of its connection, which it chose itself, and then
    holds the next message back here, and with it the generation. So no more than one message
    waits in this process, and none for longer than the bound.

    Args:
        context: The call.
        most_s: Seconds that a message may wait.
    """

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], most_s: float) -> None:
        self._context, self._most_s = context, most_s
        self._headers: asyncio.Future[None] | None = None
        self._held: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._released: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Gives up what is still held."""
        if self._timer is not None:
            self._timer.cancel()
        if self._released is not None:
            self._released.cancel()
            await asyncio.gather(self._released, return_exceptions=True)
        if self._headers is not None:  # a status that comes upon their way would send them again
            await asyncio.wait((self._headers,), timeout=self._most_s)

    def hold(self, message: Any) -> None:
        """Keeps the first message for the next one to go with, or to go alone if that is late."""
        self._held = message
        self._timer = asyncio.get_running_loop().call_later(_HELD_S, self._release)

    async def write(self, message: Any) -> None:
        """Hands a message over; returns when there is room for the next one.

        Raises:
            ResourceExhausted: There was none for too long.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._released is not None:
            await self._released
            self._released = None
        elif self._held is not None:
            self._held.MergeFrom(message)
            message = self._held
        self._held = None
        await self._write(message)

    def _release(self) -> None:
        self._released = asyncio.create_task(self._write(self._held), name="held message")

    async def _write(self, message: Any) -> None:
        if self._headers is None:
            # By itself: a first message that is given up would take the status' headers along.
            self._headers = asyncio.ensure_future(self._context.send_initial_metadata(()))
            # Their error is taken note of: where the client has left, nobody waits for it.
            self._headers.add_done_callback(lambda sent: sent.cancelled() or sent.exception())
        if not self._headers.done():  # to wait costs a turn of the loop even so
            # Nor are they given up half-way; a shield would tell the loop of their error.
            await asyncio.wait((self._headers,))
        self._headers.result()
        try:
            async with asyncio.timeout(self._most_s):
                await self._context.write(message)
        except TimeoutError:
            raise ResourceExhausted(
                f"the client did not read for {self._most_s:g} s, which is this gateway's limit "
                "(slow_reader_s)"
            ) from None
