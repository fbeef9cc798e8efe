"""A verifier's stream: which lane it goes by, and what ends it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

import pytest
from paceline.v1 import drafter_pb2

from common.errors import ResourceExhausted
from drafter import stream
from drafter.stream import DraftStream
from tests.waiting import until


class FakeOffer:
    """A lane whose other end comes when it is told to.

    Args:
        far: Whether that is on another machine.
    """

    metadata = "offer", "here"

    def __init__(self, *, far: bool = False) -> None:
        self.far = far
        self.comes = asyncio.Event()
        self.closed = False
        self.ours, self.theirs = socket.socketpair()

    async def accept(self) -> socket.socket:
        try:
            await self.comes.wait()
        except asyncio.CancelledError:
            for _ in range(20):  # longer than it takes a stream to end
                await asyncio.sleep(0)
            raise
        return self.ours

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine() -> Iterator[Mock]:
    """That watches lanes, which are closed in the end."""
    one = Mock(backlog=0)
    yield one
    for call in one.watch.call_args_list:
        call.args[0].close()


@asynccontextmanager
async def serving(engine: Mock, *offers: FakeOffer) -> AsyncIterator[None]:
    """Serves a verifier that says no more than a hello, for the length of a block."""
    over = asyncio.Event()

    async def requests() -> AsyncIterator[drafter_pb2.DraftRequest]:
        yield drafter_pb2.DraftRequest()
        await asyncio.Event().wait()

    draft_stream = DraftStream(engine, Mock(), lambda: offers)
    served = asyncio.create_task(draft_stream.serve(requests(), AsyncMock(), over))
    try:
        yield
    finally:
        over.set()
        await served
        for offer in offers:
            offer.ours.close()
            offer.theirs.close()


async def test_of_two_lanes_that_are_taken_up_one_is_hung_up_on(engine: Mock) -> None:
    first, second = FakeOffer(), FakeOffer()
    async with serving(engine, first, second):
        first.comes.set()
        await until(lambda: first.closed)
        second.comes.set()
        await until(lambda: second.closed)
        assert engine.watch.call_count == 1
        second.theirs.settimeout(10)
        assert second.theirs.recv(1) == b""


async def test_a_lane_is_not_offered_for_ever(
    engine: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_OFFER_S", 0.01)
    offer = FakeOffer()
    async with serving(engine, offer):
        await until(lambda: offer.closed)
        assert not engine.watch.called


@pytest.mark.parametrize("far", [False, True])
async def test_a_lane_knows_whether_it_leads_elsewhere(far: bool, engine: Mock) -> None:
    offer = FakeOffer(far=far)
    async with serving(engine, offer):
        offer.comes.set()
        await until(lambda: engine.watch.called)
        lane, _ = engine.watch.call_args.args
        assert lane.shares_processors is not far


async def test_no_more_than_so_many_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_UNSENT", 3)
    draft_stream = DraftStream(Mock(), Mock(), tuple)
    for _ in range(5):
        draft_stream._queue(drafter_pb2.DraftResponse())
    assert draft_stream._unsent.qsize() == 3
    with pytest.raises(ResourceExhausted, match="3 messages wait to be read"):
        await draft_stream._broken


async def test_what_ends_reading_is_told_however_long_its_end_takes() -> None:
    """Offers are taken back before."""

    async def requests() -> AsyncIterator[drafter_pb2.DraftRequest]:
        yield drafter_pb2.DraftRequest()
        await asyncio.sleep(0)  # the offer is made
        raise ResourceExhausted("too much at once")

    offer = FakeOffer()
    draft_stream = DraftStream(Mock(backlog=0), Mock(), lambda: [offer])
    with pytest.raises(ResourceExhausted, match="too much at once"):
        await draft_stream.serve(requests(), AsyncMock(), asyncio.Event())
    assert offer.closed
    offer.ours.close()
    offer.theirs.close()
