"""What a verifier wishes for reaches the drafter's engine as it was meant."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from paceline.v1 import drafter_pb2

from common.errors import InvalidArgument
from common.sampling_params import SamplingParams
from common.tls_config import TlsConfig
from drafter.branch import Round
from drafter.convert import notes
from verifier.draft_stream import GrpcDraftLink
from verifier.methods.draft_link import RoundKey, Wish


class Recorder:
    """Takes down what it is asked for, by the names of parameters."""

    def __init__(self) -> None:
        self.opened: dict[str, Any] = {}
        self.ended: list[Round] = []

    def open(
        self,
        outbox: Any,
        session: int,
        incarnation: int,
        ids: tuple[int, ...],
        sampling: SamplingParams,
        drawn: bool,
        salt: bytes,
        draft_tokens: int,
        fanout: int,
        least: tuple[float, ...],
    ) -> None:
        self.opened = {"ids": ids, "salt": salt, "drawn": drawn}
        self.opened |= {"wish": Wish(draft_tokens, fanout, least)}

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
    opening, going_on = Wish(7, 2, (0.25,)), Wish(5, 3, (0.0, 0.125))
    link.open(1, 2, [4, 5], SamplingParams(), drawn=True, salt=b"s", wish=opening)
    key = RoundKey(base=2, path_hash=2**63 + 1, accepted=1, bonus=9)
    link.commit(1, 2, key, [8, 9], wish=going_on, verifying=4)
    sent = drafter_pb2.DraftRequest.FromString(link._message.SerializeToString())
    await link.stop()
    recorder = Recorder()
    for note in notes(recorder, Mock(), sent):  # type: ignore[arg-type]
        note()
    assert recorder.opened == {"ids": (4, 5), "salt": b"s", "drawn": True, "wish": opening}
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
