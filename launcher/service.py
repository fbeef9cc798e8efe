"""One service of a deployment, as the launcher sees it: its state, its address, its process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import worker_pb2, worker_pb2_grpc

from common.address import host_port
from common.errors import Unavailable
from common.rpc.channel import CLIENT_OPTIONS
from launcher import store
from launcher.commandline import LOOPBACK
from launcher.process import Process

HEALTH_S = 2.0
DESCRIBE_S = 10.0


class State(StrEnum):
    """Where a service is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    SERVING = "serving"
    STOPPED = "stopped"
    FAILED = "failed"
    """Ended before it served."""

    LOST = "lost"
    """Ended by itself after it served."""


@dataclass
class Service:
    """One service as the launcher sees it."""

    name: str
    needed: bool
    """Whether the deployment is useless without it."""

    host: str = LOOPBACK
    """Where it is reached."""

    about: str = ""
    """What it runs, for people."""

    state: State = State.WAITING
    address: str = ""
    process: Process | None = None
    started_s: float = 0.0
    """Monotonic clock at its start."""

    took_s: float = 0.0
    """Seconds from its start until it served."""

    @property
    def ended(self) -> bool:
        """Whether its process is no more."""
        return self.process is not None and self.process.exit_code() is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds from its start until it served, or until now."""
        if self.state is State.STARTING:
            return time.monotonic() - self.started_s
        return self.took_s

    def new_warnings(self) -> list[str]:
        """Return what it has warned of since this was asked last."""
        return self.process.new_warnings() if self.process else []

    def probe(self) -> str:
        """Return its address once it serves, else an empty string."""
        port = self.process.announced_port if self.process else None
        address = "" if port is None else host_port(self.host, port)
        return address if address and is_serving(address) else ""


class StoreService(Service):
    """The store, which speaks another protocol and lives in a folder."""

    def probe(self) -> str:
        """Return its URL once it answers, else an empty string."""
        assert self.process
        directory = self.process.log.parent
        return store.url(directory) if store.answers(directory) else ""


def is_serving(address: str) -> bool:
    """Ask a server's health service, once."""
    request = health_pb2.HealthCheckRequest()
    with grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=HEALTH_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def describe(address: str) -> worker_pb2.DescribeResponse:
    """Ask a verifier or a drafter what it is.

    Raises:
        Unavailable: It does not answer.
    """
    with grpc.insecure_channel(address, options=CLIENT_OPTIONS) as channel:
        worker = worker_pb2_grpc.WorkerStub(channel)
        try:
            answer: worker_pb2.DescribeResponse = worker.Describe(
                worker_pb2.DescribeRequest(), timeout=DESCRIBE_S
            )
        except grpc.RpcError as error:
            raise Unavailable(f"no answer from {address}") from error
    return answer
