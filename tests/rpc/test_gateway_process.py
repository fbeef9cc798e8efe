"""`python -m gateway` as a process: starting, refusing to start, stopping, staying small."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import inference_pb2, inference_pb2_grpc, types_pb2

from common.rpc.channel import open_channel
from common.tokenizer import Tokenizer
from tests.scripted_workers import ScriptedWorker, serving

ROOT = Path(__file__).parents[2]
MAX_RSS_BYTES = 300 << 20


async def launch(*argv: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        *argv,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def running(*argv: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    process = await launch("--port", "0", *argv)
    assert process.stdout is not None
    line = json.loads(await process.stdout.readline())
    assert (line["event"], line["service"]) == ("serving", "gateway")
    try:
        yield process, line["port"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


WORKER = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--verifier", WORKER, "--prot", "1"],
            "error: unknown flag --prot; the nearest known one is --port",
        ),
        ([], "error: verifiers: required"),
        (["--verifier", "nowhere"], "error: verifiers: must be host:port, got 'nowhere'"),
        (
            ["--verifier", WORKER, "--max-concurrent", "0"],
            "error: max_concurrent: must be at least 1",
        ),
        (
            ["--verifier", WORKER, "--max-generation-s", "0"],
            "error: max_generation_s: must be at least 1",
        ),
        (["--verifier", WORKER, "--model", "/nowhere"], "error: /nowhere: no such model directory"),
        (["--verifier", WORKER, "--store-url", "ftp://x"], "error: store_url:"),
        (
            ["--verifier", WORKER, "--host", "0.0.0.0"],
            "error: host: 0.0.0.0 can be reached from other machines; set tls.cert, tls.key, and",
        ),
        (
            ["--verifier", "10.0.0.5:7071"],
            "error: verifiers: 10.0.0.5:7071 can be on another machine; set fleet_tls.ca, or say",
        ),
        (["--verifier", WORKER, "--auth.tokens", "/nowhere"], "error: auth.tokens: /nowhere:"),
        (
            ["--verifier", WORKER, "--tls.cert", "/nowhere", "--tls.key", "/nowhere"],
            "error: tls: /nowhere: No such file",
        ),
    ],
)
async def test_a_gateway_that_cannot_start_says_why(argv: list[str], message: str) -> None:
    process = await launch(*argv)
    out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert err.decode().splitlines()[-1].startswith(message)
    assert "Traceback" not in err.decode()


async def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await launch("--verifier", "127.0.0.1:1", "--port", str(port))
        _, err = await process.communicate()
    assert process.returncode == 2
    assert f"error: port {port} on 127.0.0.1 is already in use" in err.decode()


async def test_a_generation_then_a_clean_end_within_the_memory_limit(demo_target: Path) -> None:
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    ids = tokenizer.encode("A short answer.")
    verifier = ScriptedWorker(tokenizer_fingerprint=tokenizer.fingerprint)
    verifier.messages = [([id_], [types_pb2.TOKEN_SOURCE_RECOVERED]) for id_ in ids]
    async with serving(verifier):
        argv = ("--verifier", verifier.address, "--model", str(demo_target))
        async with running(*argv) as (process, port), open_channel(f"127.0.0.1:{port}") as channel:
            await until_serving(health_pb2_grpc.HealthStub(channel))
            stub = inference_pb2_grpc.InferenceStub(channel)
            request = inference_pb2.GenerateRequest(text="secret prompt")
            messages = [message async for message in stub.Generate(request)]
            assert "".join(message.chunk.text for message in messages) == "A short answer."
            for chars, code in (
                (1000 << 10, grpc.StatusCode.INVALID_ARGUMENT),
                (2 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Tokenize(inference_pb2.TokenizeRequest(text="x" * chars))
                assert caught.value.code() is code
            assert psutil.Process(process.pid).memory_info().rss < MAX_RSS_BYTES
            mapped = {Path(each.path).name for each in psutil.Process(process.pid).memory_maps()}
            assert not any("torch" in name for name in mapped)
            process.send_signal(signal.SIGTERM)
            _, err = await process.communicate()
    assert process.returncode == 0
    events = [json.loads(line) for line in err.decode().splitlines()]
    assert [event["event"] for event in events][-2:] == ["draining", "stopped"]
    assert "secret" not in err.decode()
    assert "short" not in err.decode()


async def test_a_running_generation_survives_sigterm() -> None:
    verifier = ScriptedWorker()
    verifier.messages = [([5], [types_pb2.TOKEN_SOURCE_RECOVERED])]
    verifier.hold = asyncio.Event()
    async with (
        serving(verifier),
        running("--verifier", verifier.address, "--grace-s", "20") as (process, port),
        open_channel(f"127.0.0.1:{port}") as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        await until_serving(health)
        request = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[1]))
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request)
        await call.read()
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        verifier.hold.set()
        assert (await call.read()).HasField("complete")
        async with asyncio.timeout(10):
            assert await process.wait() == 0


async def until_serving(health: health_pb2_grpc.HealthStub) -> None:
    async with asyncio.timeout(20):
        while True:
            answer = await health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(0.02)
