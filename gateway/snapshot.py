"""The fleet at one moment, for operators: what there is, who works with whom, and how well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from paceline.v1 import worker_pb2

from common.drafters import misfit
from gateway.autoscale import Pool
from gateway.candidate import Candidate
from gateway.gain import Gains
from gateway.placement import offer
from gateway.workers import WorkerHandle, candidates


class State(StrEnum):
    """What a worker can be given."""

    READY = "ready"
    """Requests."""
    DRAINING = "draining"
    """Nothing new: it finishes what it has, and may be listed no longer."""
    BROKEN = "broken"
    """Nothing for now: it failed too many requests of late."""
    LOST = "lost"
    """Nothing: it is listed, but not reachable."""


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """One worker.

    Attributes:
        address: Its gRPC target.
        tier: "verifier" or "drafter": where it is listed, or was.
        state: What it can be given.
        description: What it is, or was when last seen; None where it was never reached.
        status: Its last report; None while it is lost.
        in_flight: Requests of this gateway on it or, of a drafter, drafted for by it.
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
        workers: All workers listed, and those that left and have not ended, by tier (verifiers
            first), then pool, then address.
        pairs: All pairs of workers that were ever reached, by verifier, then drafter.
        pools: All pools with a worker that was ever reached; see `Autoscaler.pools`.
    """

    workers: tuple[WorkerView, ...]
    pairs: tuple[PairView, ...]
    pools: tuple[Pool, ...]


def view(tier: str, handle: WorkerHandle, *, leaving: bool = False) -> WorkerView:
    """Returns one worker.

    Args:
        tier: Where it is listed, or was.
        handle: What follows it.
        leaving: Whether it is listed no longer.
    """
    return WorkerView(
        address=handle.address,
        tier=tier,
        state=State.DRAINING if leaving else _state(handle.candidate),
        description=handle.described,
        status=handle.status,
        in_flight=handle.in_flight_count,
    )


def standing(worker: WorkerView) -> tuple[bool, str, str]:
    """Where a worker stands in the list of all: by tier, then pool, then address."""
    pool = worker.description.pool if worker.description is not None else ""
    return worker.tier == "drafter", pool, worker.address


def pairs(
    verifiers: Mapping[str, WorkerHandle], drafters: Mapping[str, WorkerHandle]
) -> Iterator[PairView]:
    """Returns all pairs of workers that were ever reached, by verifier, then drafter."""
    targets, known = (
        sorted(candidates(tier), key=lambda each: each.address) for tier in (verifiers, drafters)
    )
    kin: defaultdict[str, list[Candidate]] = defaultdict(list)
    for verifier in targets:
        kin[verifier.description.model].append(verifier)
    gains = {model: Gains(members, known) for model, members in kin.items()}
    for verifier in targets:
        status = verifiers[verifier.address].status
        measured = {pair.drafter: pair for pair in status.pairs} if status is not None else {}
        of_model = gains[verifier.description.model]
        offered = offer(verifier, known, of_model) if verifier.available else []
        for drafter in known:
            yield PairView(
                verifier=verifier.address,
                drafter=drafter.address,
                misfit=misfit(verifier.description, drafter.description) or "",
                measured=measured.get(drafter.address),
                offered=any(each is drafter for each in offered),
            )


def _state(worker: Candidate | None) -> State:
    if worker is None or worker.load is None:
        return State.LOST
    if not worker.load.accepting:
        return State.DRAINING
    return State.BROKEN if worker.broken else State.READY
