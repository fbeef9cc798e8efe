"""The verifier's streams to its drafters, by address.

One `Draft` stream for each drafter, ended when no session has had to do with it for a while.
"""

from __future__ import annotations

import asyncio

from paceline.v1 import drafter_pb2, worker_pb2

from common.rpc.convert import LANES
from common.tasks import Tasks
from common.tls_config import TlsConfig
from verifier import draft_stream
from verifier.engine import Engine


class DrafterLinks:
    """All streams of one verifier, by address; made before the engine, bound to it after.

    The engine's thread owns the table. A drafter that no session has had to do with for a while
    leaves it, and its stream ends.

    Args:
        hello: What drafters must match.
        loop: Runs the streams.
        idle_s: Time until an unused stream ends, in seconds.
        tls: Certificates; without any drafters are called in plaintext.
    """

    def __init__(
        self,
        hello: drafter_pb2.Hello,
        loop: asyncio.AbstractEventLoop,
        idle_s: float = 60.0,
        tls: TlsConfig | None = None,
    ) -> None:
        self._hello, self._loop, self._idle_s = hello, loop, idle_s
        self._tls = tls or TlsConfig()
        self._links: dict[str, draft_stream.GrpcDraftLink] = {}
        self._engine: Engine | None = None
        self._tasks = Tasks()

    def bind(self, engine: Engine) -> None:
        """Names the engine that the streams feed; called on the event loop."""
        self._engine = engine
        self._tasks.start(self._tend(engine))

    async def close(self) -> None:
        """Ends all streams for good; called once the engine's thread is gone."""
        await self._tasks.finish(cancel=True)
        await asyncio.gather(*(link.stop() for link in self._links.values()))

    def reports(self) -> list[worker_pb2.PairStatus]:
        """What each drafter has done; from any thread."""
        return [_report(address, link) for address, link in list(self._links.items())]

    def __call__(self, address: str) -> draft_stream.GrpcDraftLink:
        """The link to a drafter; called on the engine's thread."""
        if address not in self._links:
            assert self._engine is not None, "bind comes first"
            news = self._engine.methods.draft.news
            self._links[address] = draft_stream.GrpcDraftLink(
                address, self._hello, self._engine, news, self._loop, self._tls
            )
        self._links[address].touch()
        return self._links[address]

    def _sweep(self) -> None:
        """Drops what is unused; on the engine's thread, where no session takes it meanwhile."""
        for address, link in list(self._links.items()):
            if link.unused_s >= self._idle_s:
                del self._links[address]
                self._loop.call_soon_threadsafe(self._end, link)

    def _end(self, link: draft_stream.GrpcDraftLink) -> None:
        self._tasks.start(link.stop())

    async def _tend(self, engine: Engine) -> None:
        while True:
            await asyncio.sleep(self._idle_s / 4)
            engine.post(self._sweep)


def _report(address: str, link: draft_stream.GrpcDraftLink) -> worker_pb2.PairStatus:
    meter = link.meter
    return worker_pb2.PairStatus(
        drafter=address,
        alive=link.up,
        sessions=meter.sessions,
        rounds=meter.rounds,
        drafted_tokens=meter.drafted_tokens,
        accepted_tokens=meter.accepted_tokens,
        acceptance=meter.acceptance,
        round_trip_ms=meter.round_trip_s * 1e3,
        draft_ms=meter.token_s * 1e3,
        gain=meter.gain,
        lane=LANES[link.lane_kind] if link.up else worker_pb2.LANE_UNSPECIFIED,
    )
