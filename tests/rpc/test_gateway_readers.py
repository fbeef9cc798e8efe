"""Clients that do not read: held back, then let go, and told so when they look again."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from paceline.v1 import inference_pb2, inference_pb2_grpc, types_pb2

from common.rpc.server import start
from gateway.reader import Reader
from tests.rpc.gateways import Gateway, gateway, ids_of
from tests.scripted_workers import ScriptedWorker, serving
from tests.waiting import until

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
        assert await drained(call) == 101, "the first says that it started, too"


@asynccontextmanager
async def calling(work: Callable[[Reader], Awaitable[None]]) -> AsyncIterator[Any]:
    """A call of a server that does some work for it, with 0.2 s for a message to wait."""

    async def handle(request: bytes, context: Any) -> None:
        async with Reader(context, 0.2) as reader:
            await work(reader)

    def register(server: grpc.aio.Server) -> list[str]:
        write = inference_pb2.GenerateResponse.SerializeToString
        handler = grpc.unary_stream_rpc_method_handler(handle, bytes, write)
        generic = grpc.method_handlers_generic_handler("t", {"m": handler})
        server.add_generic_rpc_handlers((generic,))
        return []

    served = await start(register=register, host="127.0.0.1", port=0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.port}", options=SMALL) as channel:
        read = inference_pb2.GenerateResponse.FromString
        yield channel.unary_stream("/t/m", response_deserializer=read)(b"")
    await served.stop()


def chunk(text: str) -> inference_pb2.GenerateResponse:
    return inference_pb2.GenerateResponse(chunk=inference_pb2.GenerationChunk(text=text))


STARTED = inference_pb2.GenerateResponse(started=inference_pb2.GenerationStarted(seed=7))


@pytest.mark.parametrize("held", [False, True])
async def test_a_first_message_that_does_not_fit_is_given_up_the_same_way(held: bool) -> None:
    given_up = asyncio.Event()

    async def work(reader: Reader) -> None:
        try:
            if held:
                reader.hold(chunk("x" * 16_000))
                await asyncio.sleep(0.2)
            await reader.write(chunk("x" * 16_000))
        finally:
            given_up.set()

    async with calling(work) as call:
        await asyncio.wait_for(given_up.wait(), 10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drained(call)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_held_message_goes_with_the_next_one() -> None:
    async def work(reader: Reader) -> None:
        reader.hold(STARTED)
        await reader.write(chunk("a"))
        await asyncio.sleep(0.2)
        await reader.write(chunk("b"))

    both = inference_pb2.GenerateResponse(started=STARTED.started, chunk=chunk("a").chunk)
    async with calling(work) as call:
        assert [message async for message in call] == [both, chunk("b")]


async def test_a_held_message_goes_alone_where_the_next_one_is_late() -> None:
    late = asyncio.Event()

    async def work(reader: Reader) -> None:
        reader.hold(STARTED)
        await late.wait()
        await reader.write(chunk("a"))

    async with calling(work) as call:
        assert await asyncio.wait_for(call.read(), 10) == STARTED
        late.set()
        assert await asyncio.wait_for(call.read(), 10) == chunk("a")


async def test_what_ends_before_a_held_message_went_is_told_alone() -> None:
    async def work(reader: Reader) -> None:
        reader.hold(STARTED)
        raise RuntimeError("no")

    async with calling(work) as call:
        with pytest.raises(grpc.aio.AioRpcError, match="internal error"):
            await call.read()


async def turns() -> None:
    """Lets the loop do what it can do."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_headers_that_no_longer_reach_a_client_are_no_error_of_this_process() -> None:
    """Its connection breaks while they are sent: what cancels the call is all that tells of it."""
    lost, told = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    class Context:
        async def send_initial_metadata(self, metadata: object) -> None:
            await lost.wait()
            raise ConnectionError

    async def handle() -> None:
        async with Reader(Context(), 5.0) as reader:  # type: ignore[arg-type]
            await reader.write(STARTED)

    call = asyncio.create_task(handle())
    await turns()
    call.cancel()
    await turns()
    lost.set()
    await asyncio.wait({call})
    assert call.cancelled()
    del call
    gc.collect()
    assert not told
