"""The verifier's gRPC service: validate, convert, await, convert."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc.aio
from paceline.v1 import verifier_pb2, verifier_pb2_grpc, worker_pb2

from common import priority
from common.errors import Aborted, InvalidArgument, Unavailable
from common.telemetry.span import Traces, current
from verifier.convert import (
    MOST_SESSION_CHARS,
    check_length,
    complete_to_proto,
    request_from_proto,
    tokens_to_proto,
)
from verifier.engine import Engine
from verifier.links import DrafterLinks
from verifier.mailbox import Mailbox, beat_s, next_beat
from verifier.round_spans import RoundSpans, results
from verifier.sequence import Event, Request
from verifier.sessions import Sessions

SERVICE = verifier_pb2.DESCRIPTOR.services_by_name["Verifier"].full_name

_SPAN = f"{SERVICE}/Generate"


class VerifierService(verifier_pb2_grpc.VerifierServicer):
    """Streams generations out of the engine.

    Args:
        engine: Stepped by its own thread.
        eos: Ids that end the model's texts.
        sessions: Fences them.
        interval_s: Time between two messages of one stream where there are few, in seconds; what
            is committed meanwhile travels together. The first and the last go as soon as the engine
            tells of them.
        numerics: Fingerprint of the model's; requests meant for another one are refused.
        traces: Makes a span of each request.
        round_ratio: Share of a traced request's rounds that get spans, too.
    """

    def __init__(
        self,
        engine: Engine,
        eos: Sequence[int],
        sessions: Sessions,
        interval_s: float = 0.0,
        *,
        numerics: str,
        traces: Traces | None = None,
        round_ratio: float = 0.0,
    ) -> None:
        self._engine = engine
        self._eos = eos
        self._sessions = sessions
        self._interval_s = interval_s
        self._numerics = numerics
        self._traces, self._round_ratio = traces or Traces(), round_ratio
        self._stands_back = False

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
        with self._traces.span(_SPAN, context.invocation_metadata()) as span:
            rounds = RoundSpans(span, self._round_ratio)
            self._check_numerics(request.numerics_fingerprint)  # first: ids may be another model's
            asked = request_from_proto(request, self._eos)
            asked = replace(asked, timed=rounds.wanted, span=current())
            span.set({"paceline.request_id": asked.request_id})
            output_tokens, last = 0, Event()
            try:
                async with aclosing(self._news(request, asked)) as news:
                    async for events in news:
                        rounds.add(events)
                        output_tokens += sum(len(event.ids) for event in events)
                        tokens, last = tokens_to_proto(events), events[-1]
                        if last.finish is None:
                            yield verifier_pb2.VerifierGenerateResponse(tokens=tokens)
            finally:  # a gateway that found a stop string hangs up
                span.set(results(asked, last, output_tokens))
            assert last.finish is not None
            assert last.counts is not None
        # After the span: a caller that has it may hang up before it hears that this was all.
        complete = complete_to_proto(asked, last.finish, last.counts, output_tokens)
        yield verifier_pb2.VerifierGenerateResponse(tokens=tokens, complete=complete)

    def _check_numerics(self, wanted: str) -> None:
        if wanted not in ("", self._numerics):
            raise Unavailable("another verifier is here now, with other numerics")

    async def _news(
        self, message: verifier_pb2.VerifierGenerateRequest, asked: Request
    ) -> AsyncGenerator[list[Event], None]:
        """Runs a request; yields what the engine tells, a few events at a time."""
        loop = asyncio.get_running_loop()
        mailbox = Mailbox(loop)

        def end(error: Aborted) -> None:
            mailbox.put(Event(error=error))

        output: list[int] = []
        ticket, due, last = 0, loop.time(), Event()
        try:
            ticket = self._engine.submit(asked, mailbox.put)
            if message.session:  # only now: what is refused ends no turn that runs
                self._sessions.enter(message.session, message.epoch, message.request_id, end)
            self._give_way()
            while last.finish is None:
                events = await mailbox.take(due)  # a slow reader gets fewer, larger messages
                due = next_beat(loop.time(), beat_s(self._interval_s, self._engine.live))
                last = events[-1]
                if last.error is not None:
                    raise last.error
                output.extend(id_ for event in events for id_ in event.ids)
                yield events
        finally:
            self._engine.cancel(ticket)
            self._give_way()
            if message.session:
                ids = [*asked.prompt_ids, *output]
                self._sessions.leave(message.session, end, ids, asked.cache_salt)

    def _give_way(self) -> None:
        """Lets the engine go before the loop, unless one text alone waits for its drafts."""
        several = self._engine.live > 1
        if several != self._stands_back:
            self._stands_back = several
            (priority.stand_back if several else priority.go_first)()

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


def status(
    engine: Engine, sessions: Sessions, links: DrafterLinks
) -> worker_pb2.WatchStatusResponse:
    """The engine's load on the wire, and what its drafters have done."""
    load = engine.load()
    return worker_pb2.WatchStatusResponse(
        accepting=engine.accepting,
        running=load.running,
        waiting=load.waiting,
        kv_blocks_total=load.blocks_total,
        kv_blocks_free=load.blocks_free,
        step_ms=load.step_ms,
        steps=load.steps,
        tokens=load.tokens,
        stale_drafts=engine.methods.draft.news.stale,
        stale_epochs=sessions.stale,
        queue_wait_ms=load.queue_wait_ms,
        batch_occupancy=load.occupancy,
        draft_wait_ms=load.draft_wait_ms,
        plain_step_ms=load.plain_step_ms,
        pairs=links.reports(),
    )
