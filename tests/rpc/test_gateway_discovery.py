"""A gateway process whose verifiers come and go while it runs, as an API server says."""

import asyncio
import contextlib
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import inference_pb2, inference_pb2_grpc, types_pb2

from common.errors import Unavailable
from common.rpc.channel import open_channel
from gateway.fleet import Fleet
from tests.fakes import kubeapi
from tests.rpc.test_gateway_process import running
from tests.scripted_workers import ScriptedWorker, serving
from tests.unit.gateway.discovery.reports import endpoint_slice

REQUEST = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[1]))


def slice_of(worker: ScriptedWorker) -> dict:
    host, _, port = worker.address.rpartition(":")
    return endpoint_slice("v-1", host, ports=[{"name": "grpc", "port": int(port)}])


def verifier(token: int) -> ScriptedWorker:
    worker = ScriptedWorker()
    worker.messages = [([token], [types_pb2.TOKEN_SOURCE_RECOVERED])]
    return worker


async def ids(stub: inference_pb2_grpc.InferenceStub) -> list[int]:
    messages = [message async for message in stub.Generate(REQUEST)]
    return [id_ for message in messages for id_ in message.chunk.token_ids]


async def test_verifiers_come_and_go_and_no_request_is_lost(tmp_path: Path) -> None:
    file, first, second = tmp_path / "kubeconfig", verifier(5), verifier(6)
    first.hold = asyncio.Event()
    target = ("--verifier", "kubernetes:verifier:grpc", "--kubeconfig", str(file), "--insecure")
    async with kubeapi.serving() as cluster, serving(first, second):
        file.write_text(kubeapi.kubeconfig(cluster.url))
        async with (
            running(*target, "--failover.wait-s", "0") as (_, port),
            open_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub = inference_pb2_grpc.InferenceStub(channel)
            states = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            await cluster.until("watch", 1)
            with pytest.raises(grpc.aio.AioRpcError, match="no verifier is reachable: none found"):
                await ids(stub)
            cluster.apply(slice_of(first))
            await until(states, health_pb2.HealthCheckResponse.SERVING)
            held = stub.Generate(REQUEST)
            assert list((await held.read()).chunk.token_ids) == [5]
            cluster.apply(slice_of(second))
            async with asyncio.timeout(20):
                while await ids_now(stub) != [6]:  # noqa: ASYNC110 - the gateway's own state
                    await asyncio.sleep(0.01)
            first.hold.set()
            assert (await held.read()).HasField("complete")
            cluster.delete("v-1")
            await until(states, health_pb2.HealthCheckResponse.NOT_SERVING)
            states.cancel()


async def ids_now(stub: inference_pb2_grpc.InferenceStub) -> list[int]:
    with contextlib.suppress(grpc.aio.AioRpcError):  # the new one is listed, but not reached yet
        return await ids(stub)
    return []


async def until(states, wanted) -> None:
    async with asyncio.timeout(20):
        while (await states.read()).status != wanted:
            pass


async def test_an_address_that_flaps_is_followed_in_the_end() -> None:
    worker, seen = verifier(5), []

    async def note(present: bool) -> None:
        seen.append(present)

    async with serving(worker), Fleet((), (), {}, interval_ms=50, on_change=note) as fleet:
        for _ in range(20):
            fleet.update("verifier", {worker.address})
            await asyncio.sleep(0)
            fleet.update("verifier", ())
            await asyncio.sleep(0.001)
        with pytest.raises(Unavailable, match="has left the fleet"):
            fleet.verifier(worker.address)
        fleet.update("verifier", {worker.address})
        handle = fleet.verifier(worker.address)
        async with asyncio.timeout(20):
            while not handle.present:  # noqa: ASYNC110 - the handle's own state
                await asyncio.sleep(0.01)
        assert [model.name for model in fleet.models()] == ["demo"]
        assert fleet.place(fleet.resolve("demo"), "plain", None).verifier == worker.address
        fleet.update("verifier", ())
        with pytest.raises(Unavailable, match="none found yet"):
            fleet.models()
        async with asyncio.timeout(20):
            while seen[-1]:  # noqa: ASYNC110 - told by a task of the fleet
                await asyncio.sleep(0.001)
