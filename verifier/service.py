"""The verifier's gRPC service: validate, convert, await, convert."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
from paceline.v1 import verifier_pb2, verifier_pb2_grpc, worker_pb2

from verifier.convert import complete_to_proto, request_from_proto, tokens_to_proto
from verifier.engine import Engine
from verifier.methods.draft import DraftProposer
from verifier.sequence import Event

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name


class VerifierService(verifier_pb2_grpc.VerifierServicer):
    """Streams generations out of the engine.

    Args:
        engine: Stepped by its own thread.
        eos: Ids that end the model's texts.
        interval_s: Least time between two messages of one stream, in seconds; what is
            committed meanwhile travels together. The first goes at once.
    """

    def __init__(self, engine: Engine, eos: Sequence[int], interval_s: float = 0.0) -> None:
        self._engine = engine
        self._eos = eos
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

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, event)

        ticket = self._engine.submit(asked, hear)
        output_tokens, due = 0, loop.time()
        try:
            while True:
                events = [await queue.get()]
                if events[0].finish is None and loop.time() < due:
                    await asyncio.sleep(due - loop.time())
                due = loop.time() + self._interval_s
                while not queue.empty():  # a slow reader, too, gets fewer, larger messages
                    events.append(queue.get_nowait())
                last = events[-1]
                if last.error is not None:
                    raise last.error
                yield tokens_to_proto(events)
                output_tokens += sum(len(event.ids) for event in events)
                if last.finish is not None:
                    assert last.counts is not None
                    yield complete_to_proto(asked, last.finish, last.counts, output_tokens)
                    return
        finally:
            self._engine.cancel(ticket)


def status(engine: Engine) -> worker_pb2.WatchStatusResponse:
    """The engine's load on the wire."""
    load = engine.load()
    draft = engine.proposers["draft"]
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
    )
