"""The client's end of a stream: it has to read, or it is let go."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from common.errors import ResourceExhausted


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
        self._begun = False

    async def write(self, message: Any) -> None:
        """Hands a message over; returns when there is room for the next one.

        Raises:
            ResourceExhausted: There was none for too long.
        """
        if not self._begun:
            # By itself: a first message that is given up would take the status' headers along.
            await self._context.send_initial_metadata(())
            self._begun = True
        try:
            async with asyncio.timeout(self._most_s):
                await self._context.write(message)
        except TimeoutError:
            raise ResourceExhausted(
                f"the client did not read for {self._most_s:g} s, which is this gateway's limit "
                "(slow_reader_s)"
            ) from None
