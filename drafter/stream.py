"""One verifier's stream: what it says goes to the engine, what the engine has goes to it.

A verifier may take a lane for all but its first message (see `common.lanes.lane`).

Neither direction may pile up. While the engine is behind, nothing is read, and gRPC's flow
control, or the socket's, stops the verifier; a verifier that does not read its replies loses the
stream, for the engine waits for nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import grpc.aio
from paceline.v1 import drafter_pb2

from common.errors import InvalidArgument, ResourceExhausted, Unavailable
from common.inbox import Note
from common.lanes.lane import Lane, Offer
from drafter.convert import notes, response
from drafter.engine import DraftEngine
from drafter.reply import Reply

_log = logging.getLogger(__name__)

MOST_BACKLOG = 1000
"""Notes waiting in the engine beyond which no further message is read."""

MOST_UNSENT = 1000
"""Messages waiting to be sent beyond which the stream ends."""

_POLL_S = 0.005

_OFFER_S = 10.0
"""How long a lane is offered."""

_HELLO_S = 10.0
"""How long a stream may say nothing at first: it has a place that another verifier could have."""

Requests = AsyncIterator[drafter_pb2.DraftRequest]
Context = grpc.aio.ServicerContext[Any, Any]
Greet = Callable[[drafter_pb2.DraftRequest], None]


class DraftStream:
    """The drafter's end of one `Draft` stream.

    Args:
        engine: Mirrors the sessions.
        greet: Raises where the first message is not from a verifier this drafter can help.
        offers: Makes offers of lanes, once the verifier is welcome.
    """

    def __init__(
        self, engine: DraftEngine, greet: Greet, offers: Callable[[], Sequence[Offer]]
    ) -> None:
        self._engine, self._greet, self._offers = engine, greet, offers
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[drafter_pb2.DraftResponse | None] = asyncio.Queue()
        self._lane: Lane | None = None
        self._vocab_size = 0
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._tasks: list[asyncio.Future[Any]] = []

    async def serve(self, requests: Requests, context: Context, over: asyncio.Event) -> None:
        """Serves the verifier until it has no more to say, or `over` is set.

        Raises:
            PacelineError: It was refused.
            ResourceExhausted: It does not read its replies.
            Unavailable: Its lane is broken.
        """
        reading = self._spawn(self._read(requests, context))
        writing = self._spawn(self._write(context, reading))
        ends = [self._broken, writing, self._spawn(over.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in (self._broken, reading, writing):
                if each.done():
                    each.result()
        finally:
            self._leave()
            self._broken.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(self._broken, *self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        self._tasks.append(asyncio.create_task(work))
        return self._tasks[-1]

    async def _read(self, requests: Requests, context: Context) -> None:
        offers: Sequence[Offer] = ()
        accepting: list[asyncio.Future[None]] = []
        try:
            self._greet(first := await _first(requests))
            self._vocab_size = first.hello.vocab_size
            offers = self._offers()
            await context.send_initial_metadata([offer.metadata for offer in offers])
            self._engine.post(*self._notes(first))
            # Only now: the lane's messages follow the first.
            accepting = [self._spawn(self._accept(offer)) for offer in offers]
            async for message in requests:
                for each in accepting:  # none is taken up
                    each.cancel()
                self._engine.post(*self._notes(message))
                while self._engine.backlog > MOST_BACKLOG:  # noqa: ASYNC110  (it is a thread)
                    await asyncio.sleep(_POLL_S)
        finally:
            self._unsent.put_nowait(None)
            for each in accepting:
                each.cancel()
            await asyncio.gather(*accepting, return_exceptions=True)
            for offer in offers:
                offer.close()

    async def _write(self, context: Context, reading: asyncio.Future[None]) -> None:
        while (message := await self._unsent.get()) is not None:
            await context.write(message)
        await reading  # which is about to end, and to say why

    def _take(self, replies: list[Reply]) -> None:
        """The engine's outbox."""
        message, lane = response(replies), self._lane
        if lane is not None:
            lane.send(message.SerializeToString())
        else:
            self._loop.call_soon_threadsafe(self._queue, message)

    def _queue(self, message: drafter_pb2.DraftResponse) -> None:
        if self._unsent.qsize() < MOST_UNSENT:
            self._unsent.put_nowait(message)
        else:
            self._break(ResourceExhausted(f"{MOST_UNSENT} messages wait to be read; read faster"))

    def _break(self, error: Exception) -> None:
        """Ends the stream."""
        if not self._broken.done():
            self._broken.set_exception(error)

    def _leave(self) -> None:
        """Has the engine forget this verifier."""
        if self._lane is not None:  # first, or it would go on
            self._engine.unwatch(self._lane)
        self._engine.post(partial(self._engine.sessions.forget, self._take))

    async def _accept(self, offer: Offer) -> None:
        """Changes to a lane where the verifier does, which is at once or never."""
        with closing(offer), suppress(TimeoutError):
            async with asyncio.timeout(_OFFER_S):
                connection = await offer.accept()
            if self._lane is not None:  # it has taken another up
                connection.close()
                return
            self._lane = Lane(connection, self._parse, far=offer.far)
            self._engine.watch(self._lane, self._lane_over)

    def _lane_over(self, why: str) -> None:
        error = Unavailable(f"the lane of this stream is over: {why}")
        self._loop.call_soon_threadsafe(self._break, error)

    def _parse(self, message: bytes, _sent_at: float) -> list[Note]:
        return self._notes(drafter_pb2.DraftRequest.FromString(message))

    def _notes(self, message: drafter_pb2.DraftRequest) -> list[Note]:
        return notes(self._engine.sessions, self._take, message, self._vocab_size)


async def _first(requests: Requests) -> drafter_pb2.DraftRequest:
    """The first message; an empty one where the verifier ends the stream without any."""
    try:
        async with asyncio.timeout(_HELLO_S):
            return await anext(requests, drafter_pb2.DraftRequest())
    except TimeoutError:
        raise InvalidArgument("hello", f"must come within {_HELLO_S:g} s") from None
