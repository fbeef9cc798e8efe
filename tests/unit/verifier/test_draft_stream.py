"""A verifier's end of a drafter's stream: when it is opened, what is sent, and how it is left."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from paceline.v1 import drafter_pb2

from common.sampling_params import SamplingParams
from common.tls_config import TlsConfig
from tests.clock import Clock
from tests.waiting import until
from verifier import draft_stream
from verifier.draft_stream import GrpcDraftLink
from verifier.drafting.link import Ended, Opening, RoundKey, Wish


@pytest.fixture
def loop() -> Mock:
    """Of calls that an engine's thread makes, and that are not made here."""
    return Mock(spec=asyncio.AbstractEventLoop)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock(100.0)
    monkeypatch.setattr(draft_stream, "time", SimpleNamespace(monotonic=one))
    return one


def link_on(loop: asyncio.AbstractEventLoop, tls: TlsConfig | None = None) -> GrpcDraftLink:
    hello = drafter_pb2.Hello()
    return GrpcDraftLink("nowhere:1", hello, Mock(backlog=0), Mock(), loop, tls or TlsConfig())


def test_a_drafter_that_is_away_is_called_after_ever_longer_pauses(
    loop: Mock, clock: Clock
) -> None:
    link, pauses = link_on(loop), list[float]()
    for calls in range(1, 8):
        assert not link.reach()
        assert not link.reach()
        assert loop.call_soon_threadsafe.call_count == calls, "not twice at once"
        link._lost("nobody is there")
        pauses.append(link._not_before - clock.now)
        clock.now = link._not_before - 0.01
        assert not link.reach()
        assert loop.call_soon_threadsafe.call_count == calls, "not yet"
        clock.now += 0.02
    assert pauses == pytest.approx([0.25, 0.5, 1, 2, 4, 8, 8])
    link._parse(b"", 0.0)
    link._lost("it was there")
    assert link._not_before - clock.now == pytest.approx(0.25)


def test_what_has_gathered_is_sent_once(loop: Mock) -> None:
    link = link_on(loop)
    link.flush()
    assert not loop.call_soon_threadsafe.called
    link.close(1, 2)
    for _ in range(2):
        link.flush()
    ((_, message),) = (call.args for call in loop.call_soon_threadsafe.call_args_list)
    assert [(one.session, one.incarnation) for one in message.closes] == [(1, 2)]


def test_a_drafter_is_used_while_rounds_are_told(loop: Mock, clock: Clock) -> None:
    link, wish = link_on(loop), Wish(5, 1, ())
    clock.now += 60
    link.open(1, 1, Opening([4], SamplingParams(), False, b"", wish))
    assert link.unused_s == 0
    clock.now += 60
    link.commit(1, 1, Ended(RoundKey(2, 1, 1, 9), [9], wish, verifying=0))
    assert link.unused_s == 0


def test_a_drafter_that_does_not_read_is_left(loop: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_stream, "_MOST_UNSENT", 3)
    link = link_on(loop)
    link._task = Mock()
    for _ in range(3):
        link._send(drafter_pb2.DraftRequest())
    assert not link._task.cancel.called
    link._send(drafter_pb2.DraftRequest())
    link._task.cancel.assert_called_once_with("it does not read")


async def test_a_link_that_was_stopped_opens_no_stream(loop: Mock) -> None:
    link = link_on(loop)
    link.reach()
    await link.stop()
    (start,) = loop.call_soon_threadsafe.call_args.args
    start()
    assert not loop.create_task.called
    link._lost("as told")
    assert link._not_before == math.inf


def test_a_lost_stream_leaves_no_lane(loop: Mock) -> None:
    link = link_on(loop)
    link._lane = lane = Mock()
    link._lost("as told")
    link._engine.unwatch.assert_called_once_with(lane)
    assert link._lane is None


async def test_certificates_that_cannot_be_read_are_told(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    link = link_on(asyncio.get_running_loop(), TlsConfig(ca=tmp_path / "none"))
    link.reach()
    await until(lambda: not link._connecting)
    await link.stop()
    (record,) = caplog.records
    assert "No such file" in vars(record)["reason"]
