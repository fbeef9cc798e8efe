"""The drafter's gRPC service: one stream a verifier, many sessions a message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, worker_pb2

from common.drafters import misfit
from common.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from common.lanes.far import LanePort
from common.lanes.lane import Offer
from common.lanes.near import NearOffer
from drafter.engine import DraftEngine
from drafter.stream import DraftStream

_log = logging.getLogger(__name__)

SERVICE = drafter_pb2.DESCRIPTOR.services_by_name["Drafter"].full_name


class DrafterService(drafter_pb2_grpc.DrafterServicer):
    """Connects verifiers to the engine.

    Args:
        engine: Stepped by its own thread.
        hello: What a verifier must match.
        max_streams: Most verifiers at once.
        lanes: Whether verifiers on this machine are offered lanes.
        lane_port: Where those of other verifiers arrive; None offers them none.
    """

    def __init__(
        self,
        engine: DraftEngine,
        hello: drafter_pb2.Hello,
        max_streams: int,
        *,
        lanes: bool = True,
        lane_port: LanePort | None = None,
    ) -> None:
        self._engine = engine
        self._hello = hello
        self._max_streams, self._lanes, self._lane_port = max_streams, lanes, lane_port
        self._streams = 0
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
    ) -> None:
        """Serves one verifier until it or this drafter goes away."""
        if self._streams >= self._max_streams:
            raise ResourceExhausted(
                f"this drafter serves {self._max_streams} verifiers already; try another"
            )
        self._streams += 1
        try:
            stream = DraftStream(self._engine, self._greet, self._offers)
            await stream.serve(aiter(request_iterator), context, self._over)
        finally:
            self._streams -= 1

    def _greet(self, first: drafter_pb2.DraftRequest) -> None:
        """Refuses verifiers this drafter cannot help."""
        if not first.HasField("hello"):
            raise InvalidArgument("hello", "must come with the first message of a stream")
        if not self._engine.accepting:
            raise Unavailable("this drafter is draining; try another")
        if reason := misfit(first.hello, self._hello):
            raise FailedPrecondition(f"this drafter does not fit: {reason}")

    def _offers(self) -> list[Offer]:
        """Of lanes; the verifier takes one of them up, or none."""
        offers: list[Offer] = []
        if self._lanes:
            try:
                offers.append(NearOffer())
            except OSError as error:  # nowhere to put a socket: gRPC does as well
                _log.info("no lane can be offered", extra={"reason": str(error)})
        if self._lane_port is not None:
            offers.append(self._lane_port.offer())
        return offers


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
        batch_occupancy=load.occupancy,
        draft_wait_ms=load.draft_wait_ms,
    )
