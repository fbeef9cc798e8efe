"""A deployment of real processes on tiny models, any of which can be killed.

As in production: all parts know each other by certificates, and callers have tokens.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import paceline
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.auth.token_file import token_hash
from launcher import store
from tests.certificates import Authority

ROOT = Path(__file__).parents[3]
READY_S = 60.0
TOKEN = "a token of the tests"

GRACE_S = 0.2
"""Less than the generations take: what a worker that is told to end still runs is handed over."""


class Member:
    """One process of the deployment.

    Args:
        service: "verifier", "drafter", "gateway" or "store".
        command: Its command line.
        log: Where its standard error goes.
    """

    def __init__(self, service: str, command: list[str], log: Path) -> None:
        self.service = service
        self.log = log
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "client"))),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=ROOT
            )
        self.address = ""

    def announced(self) -> None:
        """Waits for the line that tells the port."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.service} did not start: {self.log.read_text()[-2000:]}"
        self.address = f"127.0.0.1:{json.loads(line)['port']}"

    def kill(self) -> None:
        """Takes it away, at once."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def terminate(self) -> None:
        """Tells it to end, and does not wait for that."""
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> int:
        """Waits for its end; its exit status."""
        return self._process.wait(READY_S)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends it, however it is."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(frozen=True)
class Deployment:
    """All processes, by service."""

    verifiers: list[Member]
    drafters: list[Member]
    gateways: list[Member]
    store: Member
    authority: Path

    def client(self) -> paceline.AsyncClient:
        """A client that connects to the first gateway that answers."""
        return paceline.AsyncClient(
            "ipv4:" + ",".join(each.address for each in self.gateways),
            token=TOKEN,
            tls=paceline.Tls(ca=self.authority, server_name="localhost"),
        )


@contextmanager
def deployed(
    directory: Path, *, target: Path, drafts: list[Path], verifiers: int = 2, gateways: int = 2
) -> Iterator[Deployment]:
    """Runs a deployment for the length of a block.

    Args:
        directory: For logs and the store's socket.
        target: The verifiers' model.
        drafts: The model of each drafter; every second one is as if on a machine of its own.
        verifiers: How many.
        gateways: How many.
    """
    with ExitStack() as stack:

        def start(service: str, index: int, command: list[str]) -> Member:
            member = Member(service, command, directory / f"{service}{index}.log")
            stack.callback(member.close)
            return member

        tls = Authority("tests").issue(directory / "certificates")
        certificates = {"cert": tls.cert, "key": tls.key, "ca": tls.ca}
        memory = start("store", 0, store.command(directory))
        ways: list[dict[str, Any]] = [{}, {"lanes": "false", "lane-port": 0}]
        drafting = [
            start("drafter", n, _worker("drafter", draft, certificates, **ways[n % 2]))
            for n, draft in enumerate(drafts)
        ]
        verifying = [
            start("verifier", n, _worker("verifier", target, certificates))
            for n in range(verifiers)
        ]
        for member in (*drafting, *verifying):
            member.announced()
        flags = [
            *(f"--verifier={member.address}" for member in verifying),
            *(f"--drafter={member.address}" for member in drafting),
            f"--store-url={store.url(directory)}",
            f"--auth.tokens={_tokens(directory)}",
            f"--tls.cert={tls.cert}",
            f"--tls.key={tls.key}",
            *(f"--fleet-tls.{name}={file}" for name, file in certificates.items()),
            "--port=0",
        ]
        command = [sys.executable, "-m", "gateway", *flags]
        serving = [start("gateway", n, command) for n in range(gateways)]
        for member in serving:
            member.announced()
            assert tls.ca is not None
            _await_serving(member.address, tls.ca)
        assert tls.ca is not None
        yield Deployment(verifying, drafting, serving, memory, tls.ca)


def _tokens(directory: Path) -> Path:
    file = directory / "tokens.yaml"
    file.write_text(f"tenants: {{acme: {{tokens: [{{sha256: {token_hash(TOKEN)}}}]}}}}")
    return file


def _worker(
    module: str, model: Path, certificates: Mapping[str, Path | None], **more: Any
) -> list[str]:
    flags: dict[str, Any] = {"model": model, "name": "tiny", "port": 0, "threads": 1}
    flags |= {"grace-s": GRACE_S, **{f"tls.{name}": file for name, file in certificates.items()}}
    flags |= more
    parts = [f"--{name}={value}" for name, value in flags.items()]
    return [sys.executable, "-m", module, *parts]


def _await_serving(address: str, ca: Path) -> None:
    deadline = time.monotonic() + READY_S
    with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes())) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while True:
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=READY_S)
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return
            assert time.monotonic() < deadline, f"{address} does not serve"
            time.sleep(0.05)
