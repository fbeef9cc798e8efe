"""The fleet at one moment, for operators: what there is, who works with whom, and how well."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paceline.v1 import worker_pb2

from gateway.autoscale import Pool


class State(StrEnum):
    """What a worker can be given."""

    READY = "ready"
    """Requests."""
    DRAINING = "draining"
    """Nothing new: it finishes what it has."""
    BROKEN = "broken"
    """Nothing for now: it failed too many requests of late."""
    LOST = "lost"
    """Nothing: it is listed, but not reachable."""


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker.

    Attributes:
        address: Its gRPC target.
        tier: "verifier" or "drafter": where it is listed.
        state: What it can be given.
        description: What it is, or was when last seen; None where it was never reached.
        status: Its last report; None while it is lost.
        in_flight: Requests of this gateway on it.
    """

    address: str
    tier: str
    state: State
    description: worker_pb2.DescribeResponse | None
    status: worker_pb2.WatchStatusResponse | None
    in_flight: int


@dataclass(frozen=True, kw_only=True)
class PairView:
    """A verifier and a drafter.

    Attributes:
        verifier: Its gRPC target.
        drafter: Its gRPC target.
        misfit: Why they cannot work together; empty where they can.
        measured: What the verifier measured; None where they have not worked together.
        offered: Whether requests on this verifier are offered this drafter.
    """

    verifier: str
    drafter: str
    misfit: str
    measured: worker_pb2.PairStatus | None
    offered: bool


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All of it.

    Attributes:
        workers: All workers listed, by tier (verifiers first), then pool, then address.
        pairs: All pairs of workers that were ever reached, by verifier, then drafter.
        pools: All pools with a worker that was ever reached.
    """

    workers: tuple[WorkerView, ...]
    pairs: tuple[PairView, ...]
    pools: tuple[Pool, ...]
