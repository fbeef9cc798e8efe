"""The plaintext port for probes: what it answers, and until when."""

import asyncio
import socket

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import worker_pb2, worker_pb2_grpc

from common.errors import StartupError
from common.rpc import server
from common.rpc.channel import open_channel
from common.rpc.health import Health
from tests.rpc.test_rpc_server import SERVICE, Scripted

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)


async def ask(stub: health_pb2_grpc.HealthStub, service: str) -> int:
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
    return answer.status


async def test_readiness_follows_the_service_and_liveness_the_process() -> None:
    health = Health(serving=False)
    started = await server.start(
        register=Scripted().register, host="127.0.0.1", port=0, health=health
    )
    await started.answer_probes("127.0.0.1", 0)
    async with open_channel(f"127.0.0.1:{started.health_port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert [await ask(stub, each) for each in ("", "readiness")] == [NOT_SERVING] * 2
        assert await ask(stub, "liveness") == SERVING
        health.set_serving(True)
        assert [await ask(stub, each) for each in ("", "readiness")] == [SERVING] * 2
        with pytest.raises(grpc.aio.AioRpcError, match="ask for liveness or readiness") as caught:
            await ask(stub, SERVICE)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker_pb2_grpc.WorkerStub(channel).Describe(worker_pb2.DescribeRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await started.stop()


async def test_probes_are_answered_until_the_last_call_is_over() -> None:
    servicer, retirement, ready = Scripted(), server.Retirement(), asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as free:
        health_port = free.getsockname()[1]
    ports = []

    def note(port: int) -> None:
        ports.append(port)
        ready.set()

    serving = asyncio.create_task(
        server.serve(
            register=servicer.register,
            host="127.0.0.1",
            port=0,
            grace_s=60,
            on_ready=note,
            retirement=retirement,
            health_port=health_port,
        )
    )
    await ready.wait()
    async with (
        open_channel(f"127.0.0.1:{ports[0]}") as main,
        open_channel(f"127.0.0.1:{health_port}") as probes,
    ):
        stub = health_pb2_grpc.HealthStub(probes)
        call = worker_pb2_grpc.WorkerStub(main).WatchStatus(worker_pb2.WatchStatusRequest())
        await call.read()
        assert await ask(stub, "readiness") == SERVING
        retirement.begin()
        while await ask(stub, "readiness") == SERVING:
            pass
        assert await ask(stub, "liveness") == SERVING
        servicer.release.set()
        await call.read()
        await serving


async def test_a_port_in_use_is_told_before_anything_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 is already in use"):
            await server.serve(
                register=Scripted().register,
                host="127.0.0.1",
                port=0,
                grace_s=0,
                health_port=port,
            )
