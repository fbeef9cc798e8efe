"""One thing that is wrong with a fleet, what it may be found by, and words that findings share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from paceline import Model

from fleet.snapshot import Snapshot, State, Tier, Worker

_MOST_NAMED = 4


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Requests fail, or cannot be given to what is there."""
    WARNING = "warning"
    """It works, slower or less safely than it could."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    severity: Severity
    """How bad it is."""
    what: str
    """The symptom, with its figures."""
    why: str
    """What it costs, or where it comes from."""
    remedy: str
    """What to change."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a check may look at."""

    now: Snapshot
    """The fleet."""
    before: Snapshot | None = None
    """The fleet a moment earlier; None where nobody looked."""
    models: Collection[Model] = ()
    """What the gateway says it serves."""


def error(what: str, why: str, remedy: str) -> Finding:
    """Returns something that is broken."""
    return Finding(severity=Severity.ERROR, what=what, why=why, remedy=remedy)


def warning(what: str, why: str, remedy: str) -> Finding:
    """Returns something that could be better."""
    return Finding(severity=Severity.WARNING, what=what, why=why, remedy=remedy)


def ready(evidence: Evidence, tier: Tier) -> list[Worker]:
    """Returns the workers of a tier that take requests."""
    return evidence.now.of(tier, State.READY)


def model_of(worker: Worker) -> str:
    """Returns the model that a worker runs; empty where that is not known."""
    return worker.identity.model if worker.identity else ""


def grouped(workers: Collection[Worker], key: Callable[[Worker], str]) -> dict[str, list[Worker]]:
    """Returns the workers that are known, by a key of theirs."""
    groups: defaultdict[str, list[Worker]] = defaultdict(list)
    for worker in workers:
        if worker.identity is not None:
            groups[key(worker)].append(worker)
    return dict(groups)


def shown(groups: Mapping[str, Collection[Worker]]) -> str:
    """Names groups of workers."""
    return "; ".join(
        f"{key}: {listed([worker.address for worker in group])}" for key, group in groups.items()
    )


def listed(addresses: Collection[str]) -> str:
    """Names addresses, the first few of many."""
    named = sorted(addresses)
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more


def scale(tier: Tier, pool: str) -> str:
    """Names the way to give a pool another size."""
    return f"scale {tier}/{pool} (`paceline fleet scale`)" if pool else f"bring the {tier}s"
