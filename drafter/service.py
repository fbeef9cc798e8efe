"""The drafter's gRPC service: one stream a verifier, many sessions a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc.aio
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, worker_pb2

from common.errors import FailedPrecondition, InvalidArgument, Unavailable
from common.rpc.convert import sampling_from_proto
from drafter.engine import DraftEngine, Outbox, Reply
from drafter.mirror import Round

SERVICE = drafter_pb2.DESCRIPTOR.services_by_name["Drafter"].full_name


class DrafterService(drafter_pb2_grpc.DrafterServicer):
    """Connects verifiers to the engine.

    Args:
        engine: Stepped by its own thread.
        hello: What a verifier must match.
    """

    def __init__(self, engine: DraftEngine, hello: drafter_pb2.Hello) -> None:
        self._engine = engine
        self._hello = hello
        self._over = asyncio.Event()

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Adds the service to a server and returns its name."""
        drafter_pb2_grpc.add_DrafterServicer_to_server(self, server)
        return [SERVICE]

    def end(self) -> None:
        """Ends the streams, which verifiers would otherwise keep open for ever."""
        self._over.set()

    async def Draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[drafter_pb2.DraftResponse]:
        """Serves one verifier until it or this drafter goes away."""
        requests = aiter(request_iterator)
        first = await anext(requests, drafter_pb2.DraftRequest())
        self._greet(first)
        await context.send_initial_metadata(())
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[drafter_pb2.DraftResponse | None] = asyncio.Queue()

        def outbox(replies: list[Reply]) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, _response(replies))

        async def read() -> None:
            try:
                self._engine.post(*_notes(self._engine, outbox, first))
                async for message in requests:
                    self._engine.post(*_notes(self._engine, outbox, message))
            finally:
                queue.put_nowait(None)

        async def expire() -> None:
            await self._over.wait()
            queue.put_nowait(None)

        tasks = (asyncio.create_task(read()), asyncio.create_task(expire()))
        try:
            while (response := await queue.get()) is not None:
                yield response
        finally:
            self._engine.post(partial(self._engine.forget, outbox))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _greet(self, first: drafter_pb2.DraftRequest) -> None:
        """Refuses verifiers this drafter cannot help."""
        if not first.HasField("hello"):
            raise InvalidArgument("hello", "must come with the first message of a stream")
        if not self._engine.accepting:
            raise Unavailable("this drafter is draining; try another")
        mine, theirs = self._hello, first.hello
        if theirs.tokenizer_fingerprint != mine.tokenizer_fingerprint:
            raise FailedPrecondition(
                "tokenizers differ: the verifier's is "
                f"{theirs.tokenizer_fingerprint[:12] or 'none'}, this drafter's "
                f"{mine.tokenizer_fingerprint[:12] or 'none'}; draft and target need the same one"
            )
        if theirs.vocab_size != mine.vocab_size:
            raise FailedPrecondition(
                f"vocabularies differ: the verifier's model has {theirs.vocab_size} ids, this "
                f"drafter's {mine.vocab_size}"
            )


def _notes(
    engine: DraftEngine, outbox: Outbox, message: drafter_pb2.DraftRequest
) -> list[Callable[[], None]]:
    """What one message asks of the engine, in order."""
    notes: list[Callable[[], None]] = [
        partial(
            engine.open,
            outbox,
            item.session,
            item.incarnation,
            tuple(item.ids),
            sampling_from_proto(item.sampling),
        )
        for item in message.opens
    ]
    notes.extend(
        partial(engine.commit, outbox, item.session, item.incarnation, _round(item))
        for item in message.commits
    )
    notes.extend(partial(engine.close, outbox, item.session) for item in message.closes)
    return notes


def _round(commit: drafter_pb2.Commit) -> Round:
    return Round(
        base=commit.base,
        path_hash=commit.path_hash,
        accepted=commit.accepted,
        ids=tuple(commit.ids),
        draft_tokens=commit.draft_tokens,
    )


def _response(replies: list[Reply]) -> drafter_pb2.DraftResponse:
    """Writes what one step has for a verifier as one message."""
    response = drafter_pb2.DraftResponse()
    for reply in replies:
        where = {"session": reply.session, "incarnation": reply.incarnation}
        if reply.round is not None:
            branches = response.branches.add(
                **where, base=reply.round.base, path_hash=reply.round.path_hash
            )
            branches.branches.add(
                accepted=reply.round.accepted, bonus=reply.round.ids[-1], ids=reply.ids
            )
        elif reply.warm is not None:
            response.readies.add(**where, length=reply.warm)
        else:
            response.drops.add(**where, reason=reply.dropped or "")
    return response


def status(engine: DraftEngine) -> worker_pb2.WatchStatusResponse:
    """The engine's load on the wire."""
    load = engine.load()
    return worker_pb2.WatchStatusResponse(
        accepting=engine.accepting,
        running=load.sessions,
        waiting=load.drafting,
        kv_blocks_total=load.blocks_total,
        kv_blocks_free=load.blocks_free,
        step_ms=load.step_ms,
        steps=load.steps,
        tokens=load.tokens,
        stale_drafts=load.stale,
    )
