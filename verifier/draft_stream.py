"""A verifier's stream to one drafter.

Opened when a request first names the drafter and again, after a pause, when it was lost. The
engine's thread writes through `GrpcDraftLink`; what arrives is posted to the engine. Where the
drafter offers a lane, the engine's thread writes and reads by that without others (see
`common.lanes.lane`). Nothing here blocks either side: a drafter that is not there is simply not
up.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Literal

import grpc
import grpc.aio
from paceline.v1 import drafter_pb2, drafter_pb2_grpc

from common.errors import StartupError
from common.inbox import Note
from common.lanes import far, near
from common.lanes.lane import Lane
from common.rpc.channel import Line
from common.rpc.convert import sampling_to_proto
from common.tls_config import TlsConfig
from verifier.branches import Received
from verifier.drafting.acquaintance import Acquaintances
from verifier.drafting.link import Ended, Opening
from verifier.drafting.meter import PairMeter
from verifier.drafting.news import DraftNews
from verifier.engine import Engine

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.25
_MOST_PAUSE_S = 8.0
_UNFIT_PAUSE_S = 60.0
_MOST_UNSENT = 1000
_MOST_BACKLOG = 10_000
"""Notes to the engine above which nothing more is read from a drafter."""
_POLL_S = 0.01

_PASSING = (OSError, RuntimeError, StartupError, ValueError)
"""Certificates between two versions, a message without sense, no descriptor or thread to be had."""

_MOST_TOLD = 10_000
"""Sessions that one message of a drafter may be about; each step of it is a message."""

LaneKind = Literal["none", "near", "far"]
"""What a stream's messages go by: gRPC, a socket of this machine, or TCP to another."""


class GrpcDraftLink:
    """The stream to one drafter.

    Args:
        address: Its gRPC target.
        hello: What it must match.
        engine: Gets what arrives.
        news: Of the draft method; has what drafters say.
        loop: Runs the stream.
        tls: Certificates; read again for each stream.
    """

    def __init__(
        self,
        address: str,
        hello: drafter_pb2.Hello,
        engine: Engine,
        news: DraftNews,
        loop: asyncio.AbstractEventLoop,
        tls: TlsConfig,
    ) -> None:
        self.known, self.meter = Acquaintances(), PairMeter()
        self._address, self._hello, self._tls = address, hello, tls
        self._vocab_size = hello.vocab_size
        self._engine, self._news, self._loop = engine, news, loop
        self._message = drafter_pb2.DraftRequest()
        self._filled = False
        self._outgoing: asyncio.Queue[drafter_pb2.DraftRequest | None] = asyncio.Queue()
        self._lane: Lane | None = None
        self.lane_kind: LaneKind = "none"
        """Of the stream that is up."""
        self.up = False
        """Whether there is one; for any thread."""
        self._missed = False  # it is away, and the log has it
        self._connecting = False
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._not_before = 0.0
        self._used_at = time.monotonic()

    # From the engine's thread.

    def reach(self) -> bool:
        """Whether the stream is up; where it is not, an attempt to open it is under way."""
        if not self.up and not self._connecting and time.monotonic() >= self._not_before:
            self._connecting = True
            self._loop.call_soon_threadsafe(self._start)
        return self.up

    @property
    def near(self) -> bool:
        """Whether the drafter is on this machine, on processors that this process may have, too."""
        lane = self._lane  # the loop may lose it meanwhile
        return lane is not None and lane.shares_processors

    @property
    def unused_s(self) -> float:
        """Time since a session had to do with this drafter, in seconds."""
        return time.monotonic() - self._used_at

    def touch(self) -> None:
        """Notes that a session has to do with this drafter."""
        self._used_at = time.monotonic()

    def open(self, session: int, incarnation: int, opening: Opening) -> None:
        """Starts a mirror."""
        self.touch()
        self._filled = True
        self._message.opens.add(
            session=session,
            incarnation=incarnation,
            ids=opening.ids,
            sampling=sampling_to_proto(opening.sampling),
            drawn=opening.drawn,
            cache_salt=opening.salt,
            draft_tokens=opening.wish.draft_tokens,
            fanout=opening.wish.fanout,
            least_chances=opening.wish.least,
        )

    def commit(self, session: int, incarnation: int, ended: Ended) -> None:
        """Tells how a round ended."""
        self.touch()
        self._filled = True
        self._message.commits.add(
            session=session,
            incarnation=incarnation,
            base=ended.key.base,
            path_hash=ended.key.path_hash,
            accepted=ended.key.accepted,
            ids=ended.ids,
            draft_tokens=ended.wish.draft_tokens,
            verifying=ended.verifying,
            fanout=ended.wish.fanout,
            least_chances=ended.wish.least,
        )

    def close(self, session: int, incarnation: int) -> None:
        """Ends a mirror."""
        self._filled = True
        self._message.closes.add(session=session, incarnation=incarnation)

    def flush(self) -> None:
        """Sends what has gathered."""
        if self._filled:
            message, self._message = self._message, drafter_pb2.DraftRequest()
            self._filled = False
            lane = self._lane
            if lane is not None:
                lane.send(message.SerializeToString())
            else:
                self._loop.call_soon_threadsafe(self._send, message)

    def hang_up(self, reason: str) -> None:
        """Ends the stream, as of a drafter whose connection stands and that does not answer."""
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel, reason)

    # On the event loop.

    def _start(self) -> None:
        if not self._stopped:
            self._task = self._loop.create_task(self._run())

    def _send(self, message: drafter_pb2.DraftRequest) -> None:
        self._outgoing.put_nowait(message)
        if self._task is not None and self._outgoing.qsize() > _MOST_UNSENT:
            self._task.cancel("it does not read")

    async def stop(self) -> None:
        """Ends the stream for good."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel("this verifier stops")
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """One life of the stream."""
        self._outgoing = asyncio.Queue()  # what was meant for an earlier stream is void
        reason = "it closed the stream"
        try:
            await self._converse()
        except grpc.aio.AioRpcError as error:
            reason = error.details() or error.code().name
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                self._pause_s = _UNFIT_PAUSE_S
        except _PASSING as error:
            reason = str(error)
        except asyncio.CancelledError as error:
            reason = str(error)
        finally:
            self._lost(reason)

    async def _converse(self) -> None:
        """Opens the stream and takes what arrives until it ends."""
        line = await asyncio.to_thread(Line, self._address, self._tls)  # reads certificates
        async with line.open() as channel:
            call = drafter_pb2_grpc.DrafterStub(channel).Draft(self._requests())
            accepted = await call.initial_metadata()  # once the drafter has read the hello
            if not call.done():  # a refused call has metadata, too: none
                offers = {key: str(value) for key, value in accepted}
                self.lane_kind = await self._take_up(offers)
                self.up = True
                facts = {"drafter": self._address, "lane": self.lane_kind}
                _log.info("drafter joined", extra=facts)
            async for response in call:
                self._pause_s = _FIRST_PAUSE_S
                self._receive(response)
                while self._engine.backlog > _MOST_BACKLOG:  # noqa: ASYNC110  (it is a thread)
                    await asyncio.sleep(_POLL_S)

    async def _take_up(self, offers: Mapping[str, str]) -> LaneKind:
        """Goes on by a lane that the drafter offers, where one can be had; says of which kind."""
        kind: LaneKind
        task = asyncio.current_task()
        assert task is not None
        if (path := offers.get(near.OFFER)) and (connection := near.connect(path)):
            kind = "near"
        elif (offer := offers.get(far.OFFER)) and (connection := await self._connect_far(offer)):
            kind = "far"
        else:
            return "none"

        def over(why: str) -> None:
            self._loop.call_soon_threadsafe(task.cancel, why)

        self._lane = Lane(connection, self._parse, far=kind == "far")
        self._engine.watch(self._lane, over)
        return kind

    async def _connect_far(self, offer: str) -> socket.socket | None:
        try:
            return await far.reach(offer, self._address, self._tls)
        except _PASSING as error:
            facts = {"drafter": self._address, "reason": str(error)}
            _log.info("no lane to the drafter", extra=facts)
            return None

    def _lost(self, reason: str) -> None:
        """Has the engine go on without, and looks again only after a pause."""
        self._not_before = math.inf if self._stopped else time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        level = logging.INFO if self._missed and not self.up else logging.WARNING
        self.up = self._connecting = False
        if self._lane is not None:
            self._engine.unwatch(self._lane)
            self._lane = None
        self._outgoing.put_nowait(None)
        self._engine.post(partial(self._news.lost, self))
        if not self._stopped:
            facts = {"drafter": self._address, "reason": reason}
            _log.log(level, "drafter lost", extra=facts)
            self._missed = True

    async def _requests(self) -> AsyncIterator[drafter_pb2.DraftRequest]:
        """What is said, until the stream is lost: gRPC would wait for more of it for ever."""
        message: drafter_pb2.DraftRequest | None = drafter_pb2.DraftRequest(hello=self._hello)
        while message is not None:
            yield message
            message = await self._outgoing.get()

    def _receive(self, response: drafter_pb2.DraftResponse) -> None:
        """Leaves all of it to the engine at once: who is woken should not have to wait again."""
        self._engine.post(*self._read(response, time.monotonic()))

    def _parse(self, message: bytes, sent_at: float) -> list[Note]:
        """Reads a message of the lane; from this machine, to have been sent is to have come."""
        self._pause_s = _FIRST_PAUSE_S
        return self._read(drafter_pb2.DraftResponse.FromString(message), sent_at)

    def _read(self, response: drafter_pb2.DraftResponse, came_at: float) -> list[Note]:
        """What a message asks of the engine.

        Raises:
            ValueError: It is about more than a drafter can have to tell.
        """
        told = len(response.readies) + len(response.branches) + len(response.drops)
        if told > _MOST_TOLD:
            raise ValueError(f"a message about {told} sessions; {_MOST_TOLD} are allowed")
        news = self._news
        notes: list[Note] = [
            partial(news.warmed, one.session, one.incarnation) for one in response.readies
        ]
        for branches in response.branches:
            wave = Received(branches, self._vocab_size, came_at)
            notes.append(partial(news.arrived, wave))
        for drop in response.drops:
            _log.info("drafter gave up a session", extra={"reason": drop.reason})
            notes.append(partial(news.dropped, drop.session, drop.incarnation))
        return notes
