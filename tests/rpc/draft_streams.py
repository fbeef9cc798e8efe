"""A verifier's end of a `Draft` stream, by gRPC and by a lane."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, types_pb2

from common.lanes.near import OFFER
from common.model.runner import Runner
from common.rpc.channel import open_channel
from tests.rpc.services import RunningDrafter, drafting
from tests.tiny_models import VOCAB

HELLO = drafter_pb2.Hello(vocab_size=VOCAB)


SAMPLING = types_pb2.SamplingParams(temperature=0.8, seed=7)


HEAD = struct.Struct("<Id")  # of a message by lane: its length, and when it was sent


class Stream:
    """The verifier's end of a `Draft` stream."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, **parts: Any) -> None:
        await self.call.write(drafter_pb2.DraftRequest(**parts))

    async def branch(self) -> tuple[drafter_pb2.Branches, drafter_pb2.Branch]:
        """The next answer to a round; what else comes is skipped.

        Branches sent ahead carry the real hash of their round, answers that of `round_of`.
        """
        while True:
            response = await self._read()
            for branches in response.branches:
                if branches.path_hash == branches.base * 31:
                    (branch,) = branches.branches
                    return branches, branch

    async def drop(self) -> drafter_pb2.Dropped:
        """The next session given up; what else comes is skipped."""
        while not (response := await self._read()).drops:
            pass
        found: drafter_pb2.Dropped = response.drops[0]
        return found

    async def end(self) -> None:
        """Reads on to the end; branches drafted ahead may still come before it."""
        async with asyncio.timeout(10):
            while (response := await self.call.read()) is not grpc.aio.EOF:
                assert not response.drops

    async def _read(self) -> drafter_pb2.DraftResponse:
        async with asyncio.timeout(10):
            response = await self.call.read()
        assert response is not grpc.aio.EOF, "the drafter ended the stream"
        return response


class LaneStream(Stream):
    """The same, by the lane that the drafter offered."""

    def __init__(
        self, call: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(call)
        self.reader, self.writer = reader, writer

    async def send(self, **parts: Any) -> None:
        message = drafter_pb2.DraftRequest(**parts).SerializeToString()
        self.writer.write(HEAD.pack(len(message), time.monotonic()) + message)
        await self.writer.drain()

    async def end(self) -> None:
        async with asyncio.timeout(10):
            while await self.reader.read(1 << 16):
                pass

    async def _read(self) -> drafter_pb2.DraftResponse:
        async with asyncio.timeout(10):
            length, sent_at = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            message = await self.reader.readexactly(length)
        assert sent_at <= time.monotonic()
        return drafter_pb2.DraftResponse.FromString(message)


async def offers(call: Any) -> dict[str, str]:
    """What a drafter offers a stream besides."""
    return dict([*await call.initial_metadata()])  # gRPC 1.76 has no keys for dict()


@asynccontextmanager
async def conversing(
    drafter: RunningDrafter, *, lane: bool = False, hello: drafter_pb2.Hello = HELLO
) -> AsyncIterator[Stream]:
    """Opens a stream for the length of a block."""
    async with open_channel(drafter.address) as channel:
        call = drafter_pb2_grpc.DrafterStub(channel).Draft()
        await call.write(drafter_pb2.DraftRequest(hello=hello))
        if lane:
            path = (await offers(call))[OFFER]
            reader, writer = await asyncio.open_unix_connection(path)
            yield LaneStream(call, reader, writer)
            writer.close()
        else:
            yield Stream(call)
        call.cancel()


@asynccontextmanager
async def serving_another(
    twin: Runner, prompt: Sequence[int], text: Sequence[int], *, lane: bool = False
) -> AsyncIterator[RunningDrafter]:
    """A drafter that goes on for an honest verifier, whatever others do to it in the block."""
    async with drafting(twin) as drafter, conversing(drafter, lane=lane) as honest:
        await honest.send(opens=[opening(prompt)])
        yield drafter
        await honest.send(commits=[round_of(len(prompt), text[:1])])
        assert list((await honest.branch())[1].ids) == text[1:5]
        honest.call.cancel()
        await drafter.empty()


both_ways = pytest.mark.parametrize("lane", [False, True], ids=["grpc", "lane"])


def opening(
    ids: Sequence[int], session: int = 1, incarnation: int = 1, **fields: Any
) -> drafter_pb2.Open:
    fields.setdefault("sampling", SAMPLING)
    return drafter_pb2.Open(session=session, incarnation=incarnation, ids=ids, **fields)


def round_of(
    base: int, ids: Sequence[int], session: int = 1, incarnation: int = 1, draft_tokens: int = 4
) -> drafter_pb2.Commit:
    return drafter_pb2.Commit(
        session=session,
        incarnation=incarnation,
        base=base,
        path_hash=base * 31,
        accepted=max(len(ids) - 1, 0),
        ids=ids,
        draft_tokens=draft_tokens,
    )
