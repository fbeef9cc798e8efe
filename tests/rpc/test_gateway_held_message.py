"""A failure while the first message of a stream, held back, is being sent reaches the client."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from paceline.v1 import inference_pb2, inference_pb2_grpc

from gateway import reader
from gateway.reader import Reader

CODE = grpc.StatusCode


class Failing(inference_pb2_grpc.InferenceServicer):
    """Begins a stream, and fails after so many turns of the loop."""

    def __init__(self, turns: int) -> None:
        self._turns = turns

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Any) -> None:
        async with Reader(context, most_s=5.0) as client:
            client.hold(inference_pb2.GenerateResponse())
            for _ in range(self._turns):
                await asyncio.sleep(0)
        await context.abort(CODE.RESOURCE_EXHAUSTED, "full")


@pytest.mark.parametrize("turns", range(12))
async def test_a_failure_while_a_held_message_is_sent_reaches_the_client(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_HELD_S", 0.0)
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(Failing(turns), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for _ in range(20):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Generate(inference_pb2.GenerateRequest(), timeout=2):
                    pass
            assert caught.value.code() is CODE.RESOURCE_EXHAUSTED
    await server.stop(0)
