"""What a verifier wishes for reaches the drafter's engine as it was meant."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import Mock

import grpc.aio
import pytest
from paceline.v1 import drafter_pb2, drafter_pb2_grpc

from common.errors import InvalidArgument
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from common.tls_config import TlsConfig
from drafter.branch import Round
from drafter.convert import notes
from drafter.sessions import Opening as Begun
from tests.rpc.services import ScriptedDrafter, drafting
from tests.tiny_models import VOCAB
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


def link_to(address: str, hello: drafter_pb2.Hello | None = None) -> GrpcDraftLink:
    """Of a verifier whose engine only hears; within an event loop."""
    engine, loop = Mock(backlog=0), asyncio.get_running_loop()
    return GrpcDraftLink(address, hello or drafter_pb2.Hello(), engine, Mock(), loop, TlsConfig())


async def test_a_message_about_everybody_and_more_makes_no_sense() -> None:
    """Two bytes of it would take a hundred times as much, and all texts would wait."""
    link = link_to("nowhere:1")
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
    link = link_to("nowhere:1")
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
    link = link_to("nowhere:1")
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
    link = link_to("nowhere:1")
    assert not link.reach(), "it is looked for"
    await until(lambda: not link._connecting)
    assert [each.reason for each in caplog.records] == ["can't start new thread"]
    await link.stop()


async def test_a_stream_that_was_hung_up_is_opened_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with ScriptedDrafter().serving() as drafter:
        link = link_to(drafter.address)
        link.hang_up("there is none yet")
        await until(link.reach)
        link.hang_up("it does not answer")
        await until(lambda: not link.up)
        await until(link.reach)
        await link.stop()
    told = [(each.message, getattr(each, "reason", "")) for each in caplog.records]
    joined = ("drafter joined", "")
    assert told == [joined, ("drafter lost", "it does not answer"), joined]


async def test_what_was_meant_for_a_lost_stream_is_not_said_on_the_next() -> None:
    async with ScriptedDrafter().serving() as drafter:
        link = link_to(drafter.address)
        link.close(1, 1)
        link.flush()
        await until(link.reach)
        link.close(2, 1)
        link.flush()
        await until(lambda: bool(drafter.requests))
        await link.stop()
    assert [one.session for each in drafter.requests for one in each.closes] == [2]


async def test_only_who_answers_is_called_again_soon() -> None:
    """That it takes streams says little."""
    async with ScriptedDrafter().serving() as drafter:
        link = link_to(drafter.address)
        link._pause_s = 8.0
        await until(link.reach)
        assert link._pause_s == 8.0
        link.close(1, 1)
        link.flush()
        await until(lambda: link._pause_s == 0.25)
        await link.stop()


async def test_a_message_without_sense_ends_its_stream(caplog: pytest.LogCaptureFixture) -> None:
    def much(request: drafter_pb2.DraftRequest) -> Iterator[drafter_pb2.DraftResponse]:
        drops = [drafter_pb2.Dropped(session=session) for session in range(10_001)]
        yield drafter_pb2.DraftResponse(drops=drops)

    async with ScriptedDrafter(much).serving() as drafter:
        link = link_to(drafter.address)
        await until(link.reach)
        link.close(1, 1)
        link.flush()
        await until(lambda: not link.up)
        await link.stop()
    (told,) = (each.reason for each in caplog.records if each.message == "drafter lost")
    assert told == "a message about 10001 sessions; 10000 are allowed"


class Refusing(ScriptedDrafter):
    """A drafter that fits nobody."""

    async def Draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it does not fit")


async def test_a_drafter_that_does_not_fit_has_not_joined_and_is_left_for_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with Refusing().serving() as drafter:
        link = link_to(drafter.address)
        link.reach()
        await until(lambda: not link._connecting)
        assert link._not_before - time.monotonic() > 30
        await link.stop()
    told = [(each.message, getattr(each, "reason", "")) for each in caplog.records]
    assert told == [("drafter lost", "it does not fit")]


async def test_a_lane_that_is_over_ends_its_stream(
    twin: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    async with drafting(twin, way="near") as drafter:
        link = link_to(drafter.address, drafter_pb2.Hello(vocab_size=VOCAB))
        await until(link.reach)
        assert link.lane_kind == "near"
        lane, over = link._engine.watch.call_args.args
        over("it hung up")
        await until(lambda: not link.up)
        await link.stop()
        lane.close()
    assert "it hung up" in [vars(each).get("reason") for each in caplog.records]


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
    link = link_to(address)
    assert not link.reach(), "it is looked for"
    await until(lambda: link._engine.post.called)
    await server.stop(None)
    await until(lambda: asyncio.all_tasks() <= before)
