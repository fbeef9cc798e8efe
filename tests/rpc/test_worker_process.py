"""`python -m verifier` and `python -m drafter` as processes: starting, refusing, stopping."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType

import grpc
import grpc.aio
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import verifier_pb2_grpc, worker_pb2, worker_pb2_grpc

import drafter.__main__
import verifier.__main__
from common import logs
from common.errors import ModelError
from common.model import loader
from common.model.native import instructions
from common.rpc.channel import open_channel
from common.rpc.worker_process import load_model
from tests.rpc.services import Text, ask, refusal
from tests.scrapes import scrape_port
from tests.waiting import until
from verifier.config import VerifierConfig

ROOT = Path(__file__).parents[2]
BOTH = pytest.mark.parametrize("service", [verifier.__main__, drafter.__main__])


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the test process's own logging alone."""
    monkeypatch.setattr(logs, "configure", lambda service, level: None)


def _no_config(tmp: Path) -> list[str]:
    return ["--model", str(tmp)]


def _corrupt_config(tmp: Path) -> list[str]:
    (tmp / "config.json").write_text("{")
    return ["--model", str(tmp)]


@BOTH
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda tmp: ["--model", "m", "--prot", "1"], "unknown flag --prot; the nearest known"),
        (lambda tmp: [], "model: required; give --model"),
        (lambda tmp: ["--model", "m", "--port", "x"], "--port: must be integer, got 'x'"),
        (lambda tmp: ["--model", "m", "--port", "99999"], "port: must be in [0, 65535]"),
        (lambda tmp: ["--model", "m", "--threads", "-1"], "threads: must be at least 0"),
        (lambda tmp: ["--model", "m", "--grace-s", "nan"], "--grace-s: must be number, got 'nan'"),
        (lambda tmp: ["--model", "m", "--grace-s", "-1"], "grace_s: must be at least 0"),
        (
            lambda tmp: ["--model", "m", "--engine.max-batch-tokens", "0"],
            "engine.max_batch_tokens: must be at least 1, got 0",
        ),
        (lambda tmp: ["--model", "/nowhere", "--port", "0"], "/nowhere: no such directory"),
        (lambda tmp: [*_no_config(tmp), "--port", "0"], "no config.json there"),
        (lambda tmp: [*_corrupt_config(tmp), "--port", "0"], "config.json: cannot be read: "),
    ],
)
@pytest.mark.usefixtures("quiet")
def test_what_cannot_start_says_why_in_one_line(
    service: ModuleType,
    arguments: Callable[[Path], list[str]],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert service.main(arguments(tmp_path)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("wanted", "processors", "told"), [(0, 2, [2]), (0, 4, []), (0, 8, []), (6, 2, [6])]
)
def test_a_pass_has_no_more_threads_than_processors_unless_it_is_told(
    wanted: int, processors: int, told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr("common.processors.count", lambda: processors)
    config = VerifierConfig(model="/nowhere", port=0, threads=wanted)
    with pytest.raises(ModelError):
        load_model(config, loader.load)
    assert threads == told


@pytest.mark.parametrize("service", ["verifier", "drafter"])
async def test_help_does_not_wait_for_torch(service: str) -> None:
    code = f"import sys, {service}.__main__; print('torch' in sys.modules)"
    process = await launch_python("-c", code)
    out, _ = await process.communicate()
    assert out.split() == [b"False"]


@BOTH
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("flag", ["--port", "--health-port", "--metrics-port"])
def test_a_port_in_use_is_found_before_the_model_is_loaded(
    service: ModuleType, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert service.main(["--model", "/nowhere", "--port", "0", flag, str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: port {port} on 127.0.0.1 is already in use")
    assert said.endswith(f"choose another with {flag}\n")


def free_port() -> int:
    """One that nobody gets by asking for any, while the model is being loaded."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def launch(service: str, *argv: str) -> asyncio.subprocess.Process:
    return await launch_python("-m", service, *argv)


async def launch_python(*argv: str) -> asyncio.subprocess.Process:
    """On the CPU, also where there is a GPU."""
    path = f"{ROOT}{os.pathsep}{ROOT / 'client'}"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *argv),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def running(
    service: str, model: Path, *argv: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Runs a service on a free port; yields the process and its address."""
    flags = ("--model", str(model), "--dtype", "float32", "--threads", "1", "--port", "0")
    process = await launch(service, *flags, *argv)
    try:
        assert process.stdout is not None
        said = await process.stdout.readline()
        if not said:
            assert process.stderr is not None
            pytest.fail(f"{service} did not start: {(await process.stderr.read()).decode()}")
        line = json.loads(said)
        assert (line["event"], line["service"]) == ("serving", service)
        yield process, f"127.0.0.1:{line['port']}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process, within_s: float) -> list[str]:
    """Waits for a clean end; the events it logged."""
    async with asyncio.timeout(within_s):
        _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    lines = [line for line in err.decode().splitlines() if line.startswith("{")]
    return [json.loads(line)["event"] for line in lines]


async def until_not_serving(health: health_pb2_grpc.HealthStub) -> None:
    async with asyncio.timeout(10):
        while True:
            answer = await health.Check(health_pb2.HealthCheckRequest())
            if answer.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                return
            await asyncio.sleep(0.01)


async def test_a_pair_drains_without_breaking_a_request(tiny_directory: Path) -> None:
    metrics = [free_port() for _ in range(2)]
    flags = [("--grace-s", "60", "--metrics-port", str(port)) for port in metrics]
    threads = "--threads", "1", "--most-threads", "2"
    async with (
        running("drafter", tiny_directory, *flags[0]) as (drafting, drafter_address),
        running("verifier", tiny_directory, *flags[1], *threads) as (verifying, address),
        open_channel(drafter_address) as drafter_channel,
        open_channel(address) as channel,
    ):
        workers = worker_pb2_grpc.WorkerStub(channel)
        about = await workers.Describe(worker_pb2.DescribeRequest())
        assert about.tier == worker_pb2.TIER_VERIFIER
        assert list(about.methods) == ["plain", "draft", "ngram", "lookahead"]
        assert (about.dtype, about.device, about.incarnation > 0) == ("float32", "cpu", True)
        watch = workers.WatchStatus(worker_pb2.WatchStatusRequest(interval_ms=60_000))
        assert (await watch.read()).accepting
        stub = verifier_pb2_grpc.VerifierStub(channel)
        call, text = stub.Generate(ask([5, 6, 7], 450, drafter_address), timeout=60), Text()
        text.take(await call.read())
        for port, tier in zip(metrics, ("drafter", "verifier"), strict=True):
            assert (await scrape_port(port)).value("paceline_accepting", tier=tier) == 1
        verifying.send_signal(signal.SIGTERM)
        health = health_pb2_grpc.HealthStub(channel)
        await until_not_serving(health)
        error = await refusal(stub.Generate(ask([5], 4), timeout=10))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        await text.rest(call)
        assert len(text.ids) == 450
        events = await ended(verifying, 10)
        assert events[-1] == "stopped"
        assert "drafter joined" in events
        assert not instructions(torch.float32) or "threads of a pass of few rows" in events
        retiring = worker_pb2_grpc.WorkerStub(drafter_channel)
        await retiring.Drain(worker_pb2.DrainRequest())
        assert (await ended(drafting, 10))[-2:] == ["draining", "stopped"]


async def _busy(channel: grpc.aio.Channel) -> list[asyncio.Task[None]]:
    """Gives a verifier work for seconds; its calls, one of which has begun."""
    stub = verifier_pb2_grpc.VerifierStub(channel)
    texts = [Text() for _ in range(128)]
    calls = [stub.Generate(ask([5 + i], 500), timeout=60) for i in range(len(texts))]
    tasks = [asyncio.create_task(text.rest(call)) for text, call in zip(texts, calls, strict=True)]
    await until(lambda: any(text.ids for text in texts))  # whichever of them came first
    return tasks


async def test_grace_ends_and_a_second_signal_ends_it_sooner(tiny_directory: Path) -> None:
    # One text at a time: all of them at once would be done within the grace.
    flags = "--grace-s", "60", "--engine.max-running", "1", "--engine.max-waiting", "600"
    async with (
        running("verifier", tiny_directory, *flags) as (hurried, first),
        running("verifier", tiny_directory, *flags) as (drained, second),
        open_channel(first) as first_channel,
        open_channel(second) as second_channel,
    ):
        cut = await _busy(first_channel)
        hurried.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        hurried.send_signal(signal.SIGTERM)
        assert "stopping at once" in await ended(hurried, 10)
        ended_by_grace = await _busy(second_channel)
        await worker_pb2_grpc.WorkerStub(second_channel).Drain(worker_pb2.DrainRequest(grace_s=1))
        assert "draining" in await ended(drained, 10)
        for calls in (cut, ended_by_grace):
            ends = await asyncio.gather(*calls, return_exceptions=True)
            codes = {end.code() for end in ends if isinstance(end, grpc.aio.AioRpcError)}
            assert codes
            assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
