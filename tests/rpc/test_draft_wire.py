"""What a verifier wishes for reaches the drafter's engine as it was meant."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import grpc.aio
import pytest
from paceline.v1 import drafter_pb2, drafter_pb2_grpc

from common.errors import InvalidArgument
from common.sampling_params import SamplingParams
from common.tls_config import TlsConfig
from drafter.branch import Round
from drafter.convert import notes
from drafter.sessions import Opening as Begun
from tests.rpc.services import ScriptedDrafter
from tests.waiting import until
from verifier.draft_stream import GrpcDraftLink
from verifier.drafting.link import Ended, Opening, RoundKey, Wish


class Recorder:
    """Takes down what it is asked for."""

    def __init__(self) -> None:
        self.opened: list[Begun] = []
        self.ended: list[Round] = []

    def open(self, outbox: Any, session: int, incarnation: int, opening: Begun) -> None:
        self.opened.append(opening)

    def commit(
        self, outbox: Any, session: int, incarnation: int, ended: Round, told_at: float
    ) -> None:
        self.ended.append(ended)


async def test_a_message_about_everybody_and_more_makes_no_sense() -> None:
    """Two bytes of it would take a hundred times as much, and all texts would wait."""
    link = GrpcDraftLink(
        "nowhere:1", drafter_pb2.Hello(), Mock(), Mock(), asyncio.get_running_loop(), TlsConfig()
    )
    told = drafter_pb2.DraftResponse()
    said = drafter_pb2.DraftRequest()
    for session in range(10_000):
        told.drops.add(session=session)
        said.closes.add(session=session)
    assert len(link._read(told, 0.0)) == len(notes(Mock(), Mock(), said)) == 10_000
    told.readies.add()
    said.closes.add()
    with pytest.raises(ValueError, match="a message about 10001 sessions; 10000 are allowed"):
        link._read(told, 0.0)
    with pytest.raises(InvalidArgument, match="may be of 10000 sessions, got 10001"):
        notes(Mock(), Mock(), said)
    await link.stop()


async def test_wishes_arrive() -> None:
    hello = drafter_pb2.Hello()
    loop = asyncio.get_running_loop()
    link = GrpcDraftLink("nowhere:1", hello, Mock(), Mock(), loop, TlsConfig())
    sampling = SamplingParams()
    link.open(1, 2, Opening([4, 5], sampling, True, b"s", Wish(7, 2, (0.25,))))
    key = RoundKey(base=2, path_hash=2**63 + 1, accepted=1, bonus=9)
    link.commit(1, 2, Ended(key, [8, 9], Wish(5, 3, (0.0, 0.125)), verifying=4))
    sent = drafter_pb2.DraftRequest.FromString(link._message.SerializeToString())
    await link.stop()
    recorder = Recorder()
    for note in notes(recorder, Mock(), sent):  # type: ignore[arg-type]
        note()
    assert recorder.opened == [
        Begun(
            ids=(4, 5),
            sampling=sampling,
            drawn=True,
            salt=b"s",
            draft_tokens=7,
            fanout=2,
            least=(0.25,),
        )
    ]
    assert recorder.ended == [
        Round(
            base=2,
            path_hash=2**63 + 1,
            accepted=1,
            ids=(8, 9),
            draft_tokens=5,
            verifying=4,
            fanout=3,
            least=(0.0, 0.125),
        )
    ]


async def test_a_drafter_that_stays_away_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = asyncio.get_running_loop()
    link = GrpcDraftLink("nowhere:1", drafter_pb2.Hello(), Mock(), Mock(), loop, TlsConfig())
    for link.up in (False, False, True, False):
        link._lost("as told")
    told = [each.levelname for each in caplog.records if each.message == "drafter lost"]
    assert told == ["WARNING", "INFO", "WARNING", "INFO"]


async def test_a_want_of_threads_is_told_and_passes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wanting(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "to_thread", wanting)
    loop = asyncio.get_running_loop()
    link = GrpcDraftLink("nowhere:1", drafter_pb2.Hello(), Mock(), Mock(), loop, TlsConfig())
    assert not link.reach(), "it is looked for"
    await until(lambda: not link._connecting)
    assert [each.reason for each in caplog.records] == ["can't start new thread"]
    await link.stop()


async def test_a_stream_that_was_hung_up_is_opened_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    loop = asyncio.get_running_loop()
    async with ScriptedDrafter().serving() as drafter:
        address = drafter.address
        link = GrpcDraftLink(address, drafter_pb2.Hello(), Mock(), Mock(), loop, TlsConfig())
        link.hang_up("there is none yet")
        await until(link.reach)
        link.hang_up("it does not answer")
        await until(lambda: not link.up)
        await until(link.reach)
        await link.stop()
    told = [(each.message, getattr(each, "reason", "")) for each in caplog.records]
    joined = ("drafter joined", "")
    assert told == [joined, ("drafter lost", "it does not answer"), joined]


class Leaving(drafter_pb2_grpc.DrafterServicer):
    """A drafter that is gone as soon as it has greeted its verifier."""

    async def Draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        await anext(aiter(request_iterator))
        await context.send_initial_metadata(())
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


async def test_nothing_is_left_of_a_stream_whose_drafter_is_gone() -> None:
    """Least of all a task that still waits for something to send."""
    before = asyncio.all_tasks()
    server = grpc.aio.server()
    drafter_pb2_grpc.add_DrafterServicer_to_server(Leaving(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    engine, loop = Mock(), asyncio.get_running_loop()
    link = GrpcDraftLink(address, drafter_pb2.Hello(), engine, Mock(), loop, TlsConfig())
    assert not link.reach(), "it is looked for"
    await until(lambda: engine.post.called)
    await server.stop(None)
    await until(lambda: asyncio.all_tasks() <= before)
