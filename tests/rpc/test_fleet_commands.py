"""`paceline fleet` as an operator runs it: a process, against a real gateway."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from paceline.v1 import worker_pb2

from gateway.auth.config import AuthConfig
from gateway.auth.token_file import token_hash
from tests.fakes import kubeapi
from tests.fakes.kube_resources import DEPLOYMENTS
from tests.rpc.gateways import Gateway, gateway
from tests.rpc.test_fleet_service import Retiring
from tests.scripted_workers import ScriptedWorker, serving
from tests.unit.fleet.test_deployments import deployment

# A test run in the background may have been started with SIGINT ignored.
MAIN = """
import signal
from paceline.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


@asynccontextmanager
async def paceline(
    target: Gateway | None, *argv: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts `paceline fleet …`."""
    address = f"127.0.0.1:{target.server.port}" if target else "127.0.0.1:1"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MAIN, "fleet", *argv),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PACELINE_ADDRESS": address, **environment},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(target: Gateway | None, *argv: str, **environment: str) -> tuple[int, str, str]:
    async with paceline(target, *argv, **environment) as process:
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def verifier(**status: Any) -> Retiring:
    worker = Retiring(pool="h100", accelerator="NVIDIA H100", tokenizer_fingerprint="t")
    known = {"accepting": True, "step_ms": 10, "kv_blocks_total": 10, "kv_blocks_free": 4}
    worker.status = worker_pb2.WatchStatusResponse(**{**known, **status})
    return worker


def drafter() -> ScriptedWorker:
    return ScriptedWorker(tier="drafter", pool="t4", model="small", tokenizer_fingerprint="t")


async def test_status_and_pairs() -> None:
    small = drafter()
    async with serving(small):
        pair = worker_pb2.PairStatus(
            drafter=small.address,
            alive=True,
            drafted_tokens=9,
            acceptance=0.75,
            gain=1.5,
            lane=worker_pb2.LANE_FAR,
        )
        big = verifier(running=3, waiting=1, pairs=[pair])
        async with serving(big), gateway(big.address, drafters=(small.address,)) as target:
            code, out, err = await run(target, "status", "--json", "--interval", "0.05")
            assert (code, err, out.count("\n")) == (0, "", 1)
            told = json.loads(out)
            assert [w["address"] for w in told["workers"]] == [big.address, small.address]
            assert told["workers"][0]["load"]["running"] == 3
            assert told["workers"][0]["tokens_per_s"] == 0.0
            assert {(p["tier"], p["name"]) for p in told["pools"]} == {
                ("verifier", "h100"),
                ("drafter", "t4"),
            }
            code, out, err = await run(target, "status", "--interval", "0.05")
            assert (code, err) == (0, "")
            assert "verifier/h100: 1 ready" in out
            assert f"{big.address}" in out
            assert "3+1" in out
            assert "60%" in out, "of the cache is held"
            code, out, _ = await run(target, "pairs", "--json")
            (told_pair,) = json.loads(out)["pairs"]
            assert told_pair["misfit"] == ""
            assert told_pair["measured"]["acceptance"] == 0.75
            assert told_pair["measured"]["lane"] == "far"
            code, out, _ = await run(target, "pairs")
            assert (code, "1.50x" in out, "far" in out) == (0, True, True)


async def test_a_watch_goes_on_until_ctrl_c() -> None:
    big = verifier()
    async with serving(big), gateway(big.address) as target:
        watching = ("status", "--watch", "--json", "--interval", "0.05")
        async with paceline(target, *watching) as process:
            assert process.stdout is not None
            for _ in range(3):
                told = json.loads(await process.stdout.readline())
                assert told["workers"][0]["address"] == big.address
            process.send_signal(signal.SIGINT)
            rest, err = await process.communicate()
        assert process.returncode == 0, err
        assert all(json.loads(line)["workers"] for line in rest.splitlines())
        assert b"Traceback" not in err


async def test_drain_waits_until_the_worker_is_gone() -> None:
    big, other = verifier(running=2), verifier()
    async with serving(big, other), gateway(big.address, other.address) as target:
        async with paceline(target, "drain", big.address, "--grace", "9", "--wait") as process:
            assert process.stdout is not None
            first = await process.stdout.readline()
            assert first.decode() == f"{big.address} drains: 2 running\n"
            assert process.returncode is None
            big.status = worker_pb2.WatchStatusResponse(accepting=False)
            rest, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        assert rest.decode().strip().endswith(f"{big.address} is gone")
        assert big.graces == [9]
        code, _, err = await run(target, "drain", "nowhere:1")
        assert (code, err) == (1, "error: address: no worker is listed at 'nowhere:1'\n")


async def test_a_drain_is_not_at_its_end_where_the_gateway_is() -> None:
    big = verifier(running=2)
    async with serving(big), gateway(big.address) as target:
        async with paceline(target, "drain", big.address, "--wait") as process:
            assert process.stdout is not None
            await process.stdout.readline()
            await target.fleet_service.end()
            rest, err = await process.communicate()
        assert (process.returncode, b"is gone" in rest) == (1, False)
        assert err.startswith(b"error: the gateway at 127.0.0.1:")


async def test_a_gateway_that_ends_before_it_tells_anything() -> None:
    async with gateway() as target:
        await target.fleet_service.end()
        code, out, err = await run(target, "pairs")
    assert (code, out) == (1, "")
    assert err == (
        f"error: the gateway at 127.0.0.1:{target.server.port} ended before it told of its fleet\n"
    )


async def test_the_doctors_exit_code() -> None:
    big = verifier()
    async with serving(big), gateway(big.address) as target:
        code, out, err = await run(target, "doctor", "--interval", "0.05", "--json")
        assert (code, err) == (1, "")
        whats = [finding["what"] for finding in json.loads(out)["findings"]]
        assert whats == ["no drafter is ready for demo", "demo takes token ids only"]
        code, out, _ = await run(target, "doctor", "--interval", "0.05")
        assert code == 1
        assert "warning: no drafter is ready for demo\n  why: " in out


async def test_who_is_no_operator_learns_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(f"tenants: {{acme: {{tokens: [{{sha256: {token_hash('acme')}}}]}}}}")
    big = verifier()
    async with serving(big), gateway(big.address, auth=AuthConfig(tokens=file)) as target:
        for argv in (("status",), ("pairs",), ("doctor",), ("drain", big.address)):
            code, out, err = await run(target, *argv, PACELINE_TOKEN="acme")
            assert (code, out) == (1, "")
            assert err == "error: these credentials are not an operator's\n"
    assert big.graces == []


async def test_scale(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    async with kubeapi.serving() as cluster:
        cluster.apply(deployment("paceline", "drafter", "t4", 2), resource=DEPLOYMENTS)
        file.write_text(kubeapi.kubeconfig(cluster.url))
        code, out, err = await run(None, "scale", "drafter/t4", "6", KUBECONFIG=str(file))
        wanted = "drafter/t4: Deployment default/paceline-drafter-t4 from 2 to 6 replicas\n"
        assert (code, out, err) == (0, wanted, "")
        cluster.forbidden = {"patch deployments/scale"}
        code, _, err = await run(None, "scale", "drafter/t4", "9", "--kubeconfig", str(file))
        assert code == 1
        assert "You lack the right to patch deployments/scale" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("status",), 1, "error: no Paceline gateway answers at 127.0.0.1:1"),
        (("scale", "t4", "2"), 2, "error: pool: must be TIER/NAME"),
        (("scale", "drafter/t4", "-1"), 2, "error: "),
        (("drain",), 2, "error: "),
    ],
)
async def test_what_cannot_be_done_is_one_line(
    argv: tuple[str, ...], code: int, message: str
) -> None:
    status, out, err = await run(None, *argv)
    assert (status, out) == (code, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
