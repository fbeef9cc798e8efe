"""One verifier's stream: what it says goes to the engine, what the engine has goes to it.

Neither direction may pile up. While the engine is behind, nothing is read, and gRPC's flow
control stops the verifier; a verifier that does not read its replies loses the stream, for the
engine waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc.aio
from paceline.v1 import drafter_pb2

from common.errors import ResourceExhausted
from drafter.convert import notes, response
from drafter.engine import DraftEngine
from drafter.reply import Reply

MOST_BACKLOG = 1000
"""Notes waiting in the engine beyond which no further message is read."""

MOST_UNSENT = 1000
"""Messages waiting to be sent beyond which the stream ends."""

_POLL_S = 0.005

Requests = AsyncIterator[drafter_pb2.DraftRequest]
Context = grpc.aio.ServicerContext[Any, Any]
Greet = Callable[[drafter_pb2.DraftRequest], None]


class DraftStream:
    """The drafter's end of one `Draft` stream.

    Args:
        engine: Mirrors the sessions.
        greet: Raises where the first message is not from a verifier this drafter can help.
    """

    def __init__(self, engine: DraftEngine, greet: Greet) -> None:
        self._engine, self._greet = engine, greet
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[drafter_pb2.DraftResponse | None] = asyncio.Queue()
        self._behind = asyncio.Event()

    async def serve(self, requests: Requests, context: Context, over: asyncio.Event) -> None:
        """Serves the verifier until it has no more to say, or `over` is set.

        Raises:
            PacelineError: It was refused.
            ResourceExhausted: It does not read its replies.
        """
        reading = asyncio.create_task(self._read(requests, context))
        writing = asyncio.create_task(self._write(context))
        tasks: list[asyncio.Task[Any]] = [reading, writing]
        tasks += [asyncio.create_task(event.wait()) for event in (over, self._behind)]
        try:
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
            if self._behind.is_set():
                raise ResourceExhausted(f"{MOST_UNSENT} messages wait to be read; read faster")
            for task in (reading, writing):
                if task.done():
                    task.result()
        finally:
            self._engine.post(partial(self._engine.forget, self._take))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: Requests, context: Context) -> None:
        try:
            first = await anext(requests, drafter_pb2.DraftRequest())
            self._greet(first)
            await context.send_initial_metadata(())
            self._engine.post(*notes(self._engine, self._take, first))
            async for message in requests:
                self._engine.post(*notes(self._engine, self._take, message))
                while self._engine.backlog > MOST_BACKLOG:  # noqa: ASYNC110  (it is a thread)
                    await asyncio.sleep(_POLL_S)
        finally:
            self._unsent.put_nowait(None)

    async def _write(self, context: Context) -> None:
        while (message := await self._unsent.get()) is not None:
            await context.write(message)

    def _take(self, replies: list[Reply]) -> None:
        """The engine's outbox."""
        self._loop.call_soon_threadsafe(self._queue, response(replies))

    def _queue(self, message: drafter_pb2.DraftResponse) -> None:
        if self._unsent.qsize() < MOST_UNSENT:
            self._unsent.put_nowait(message)
        else:
            self._behind.set()
