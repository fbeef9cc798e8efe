"""The verifier's gRPC service: validate, convert, await, convert."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import grpc.aio
from paceline.v1 import verifier_pb2, verifier_pb2_grpc, worker_pb2

from common.errors import Aborted, InvalidArgument
from verifier.convert import (
    MOST_SESSION_CHARS,
    check_length,
    complete_to_proto,
    request_from_proto,
    tokens_to_proto,
)
from verifier.engine import Engine
from verifier.methods.draft import DraftProposer
from verifier.sequence import Event
from verifier.sessions import Sessions

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name


class VerifierService(verifier_pb2_grpc.VerifierServicer):
    """Streams generations out of the engine.

    Args:
        engine: Stepped by its own thread.
        eos: Ids that end the model's texts.
        sessions: Fences them.
        interval_s: Least time between two messages of one stream, in seconds; what is
            committed meanwhile travels together. The first and the last go at once.
    """

    def __init__(
        self, engine: Engine, eos: Sequence[int], sessions: Sessions, interval_s: float = 0.0
    ) -> None:
        self._engine = engine
        self._eos = eos
        self._sessions = sessions
        self._interval_s = interval_s

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Adds the service to a server and returns its name."""
        verifier_pb2_grpc.add_VerifierServicer_to_server(self, server)
        return [SERVICE]

    async def Generate(
        self,
        request: verifier_pb2.VerifierGenerateRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[verifier_pb2.VerifierGenerateResponse]:
        """Streams one generation; whatever ends the call frees it in the engine."""
        asked = request_from_proto(request, self._eos)
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event] = asyncio.Queue()
        ended = asyncio.Event()

        def take(event: Event) -> None:
            if ended.is_set():  # nothing counts after the end, whoever brought it about
                return
            queue.put_nowait(event)
            if event.finish is not None or event.error is not None:
                ended.set()

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(take, event)

        def end(error: Aborted) -> None:
            take(Event(error=error))

        if request.session:
            self._sessions.enter(request.session, request.epoch, request.request_id, end)
        output: list[int] = []
        ticket, due = 0, loop.time()
        try:
            ticket = self._engine.submit(asked, hear)
            while True:
                events = [await queue.get()]
                if loop.time() < due:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(ended.wait(), due - loop.time())
                due = loop.time() + self._interval_s
                while not queue.empty():  # a slow reader, too, gets fewer, larger messages
                    events.append(queue.get_nowait())
                last = events[-1]
                if last.error is not None:
                    raise last.error
                yield tokens_to_proto(events)
                output.extend(id_ for event in events for id_ in event.ids)
                if last.finish is not None:
                    assert last.counts is not None
                    yield complete_to_proto(asked, last.finish, last.counts, len(output))
                    return
        finally:
            self._engine.cancel(ticket)
            if request.session:
                ids = [*asked.prompt_ids, *output]
                self._sessions.leave(request.session, end, ids, asked.cache_salt)

    async def ReleaseSession(
        self,
        request: verifier_pb2.ReleaseSessionRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> verifier_pb2.ReleaseSessionResponse:
        """Gives up what is cached of a session."""
        if not request.session:
            raise InvalidArgument("session", "must not be empty")
        check_length("session", request.session, MOST_SESSION_CHARS)
        self._sessions.release(request.session, request.epoch)
        return verifier_pb2.ReleaseSessionResponse()


def status(engine: Engine, sessions: Sessions) -> worker_pb2.WatchStatusResponse:
    """The engine's load on the wire."""
    load = engine.load()
    draft = engine.methods.single["draft"]
    assert isinstance(draft, DraftProposer)
    return worker_pb2.WatchStatusResponse(
        accepting=engine.accepting,
        running=load.running,
        waiting=load.waiting,
        kv_blocks_total=load.blocks_total,
        kv_blocks_free=load.blocks_free,
        step_ms=load.step_ms,
        steps=load.steps,
        tokens=load.tokens,
        stale_drafts=draft.stale,
        stale_epochs=sessions.stale,
    )
