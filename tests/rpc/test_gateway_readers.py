"""Clients that do not read: held back, then let go, and told so when they look again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from paceline.v1 import inference_pb2, inference_pb2_grpc, types_pb2

from common.rpc.server import start
from gateway.reader import Reader
from tests.rpc.gateways import Gateway, gateway, ids_of, until
from tests.scripted_workers import ScriptedWorker, serving

R = types_pb2.TOKEN_SOURCE_RECOVERED

SMALL = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
"""Of a client's channel: little is sent to it that it has not asked for."""


def talkative(messages: int = 100) -> ScriptedWorker:
    """A verifier that writes far more than a small window takes."""
    verifier = ScriptedWorker()
    verifier.messages = [([5] * 1000, [R] * 1000)] * messages
    return verifier


@asynccontextmanager
async def stub_of(target: Gateway) -> AsyncIterator[inference_pb2_grpc.InferenceStub]:
    address = f"127.0.0.1:{target.server.port}"
    async with grpc.aio.insecure_channel(address, options=SMALL) as channel:
        yield inference_pb2_grpc.InferenceStub(channel)


async def drained(call: Any) -> int:
    """Reads to the end; returns how many messages came."""
    count = 0
    async for _ in call:
        count += 1
    return count


async def test_who_never_reads_is_let_go_on_all_tiers_and_hears_why() -> None:
    verifier = talkative()
    verifier.hold = asyncio.Event()
    async with (
        serving(verifier),
        gateway(verifier.address, slow_reader_s=0.2) as target,
        stub_of(target) as stub,
    ):
        call = stub.Generate(inference_pb2.GenerateRequest(token_ids=ids_of(1)))
        await until(lambda: len(verifier.requests) == 1)
        await until(lambda: target.admission.running == 0)
        await asyncio.wait_for(verifier.cancelled.wait(), 5)
        assert target.fleet.verifier(verifier.address).candidate.in_flight == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "did not read for 0.2 s" in caught.value.details()
        assert "slow_reader_s" in caught.value.details()


async def test_who_reads_late_but_in_time_gets_everything() -> None:
    verifier = talkative()
    async with (
        serving(verifier),
        gateway(verifier.address) as target,
        stub_of(target) as stub,
    ):
        call = stub.Generate(inference_pb2.GenerateRequest(token_ids=ids_of(1)))
        await until(lambda: len(verifier.requests) == 1)
        assert target.admission.running == 1
        assert await drained(call) == 102


async def test_a_first_message_that_does_not_fit_is_given_up_the_same_way() -> None:
    given_up = asyncio.Event()

    async def handle(request: bytes, context: Any) -> None:
        try:
            await Reader(context, 0.2).write(b"x" * 16_000)
        finally:
            given_up.set()

    def register(server: grpc.aio.Server) -> list[str]:
        handler = grpc.unary_stream_rpc_method_handler(handle, bytes, bytes)
        generic = grpc.method_handlers_generic_handler("t", {"m": handler})
        server.add_generic_rpc_handlers((generic,))
        return []

    served = await start(register=register, host="127.0.0.1", port=0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options=SMALL) as channel:
        call = channel.unary_stream("/t/m")(b"")
        await asyncio.wait_for(given_up.wait(), 10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await served.stop()
