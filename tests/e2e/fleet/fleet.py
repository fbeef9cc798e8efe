"""A fleet of simulated workers, with the gateway's half in the test's own process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.assignment import Drafter, Place, Verifier, Workers
from bench.simulated.spec import WorkerSpec
from bench.simulated.traffic import WatchedFleet
from bench.simulated.workers import SimulatedWorkers
from common.store.sessions import MemorySessions
from gateway.candidate import Candidate
from gateway.config import FailoverConfig
from gateway.generation import Generations
from gateway.placement import place
from gateway.sessions import Sessions

PATIENCE_S = 240.0
NEAR_S, FAR_S = 0.004, 0.060

_NEAR = {(0, 1), (1, 0), (2, 0), (2, 1), (0, 2), (1, 3)}

WORKERS = Workers(
    verifiers=(
        Verifier(step_s=0.060, session_s=0.006),
        Verifier(step_s=0.075, session_s=0.006),
        Verifier(step_s=0.090, session_s=0.006),
    ),
    drafters=(
        Drafter(token_s=0.003, acceptance=0.9),
        Drafter(token_s=0.005, acceptance=0.8),
        Drafter(token_s=0.016, acceptance=0.85),
        Drafter(token_s=0.025, acceptance=0.5),
    ),
    round_trip_s={(v, d): NEAR_S if (v, d) in _NEAR else FAR_S for v in range(3) for d in range(4)},
    coverage=0.8,
)
"""Three verifiers and four drafters: a good one, two fair ones, and one that hardly helps."""


@dataclass(frozen=True)
class Running:
    """Their processes."""

    processes: SimulatedWorkers
    verifiers: list[str]
    drafters: list[str]
    model: Path

    def another(self, like: WorkerSpec, name: str) -> str:
        """Starts one more worker; returns its address."""
        return self.processes.start(replace(like, name=name))[0]


def drafter_spec(number: int, model: Path) -> WorkerSpec:
    """What a drafter of the fleet is told."""
    one = WORKERS.drafters[number]
    return WorkerSpec(
        name=f"drafter {number}",
        tier="drafter",
        model=str(model),
        pool="small",
        step_s=one.token_s,
        acceptance=one.acceptance,
    )


def verifier_spec(number: int, model: Path, drafters: Sequence[str]) -> WorkerSpec:
    """What a verifier of the fleet is told."""
    one = WORKERS.verifiers[number]
    return WorkerSpec(
        name=f"verifier {number}",
        tier="verifier",
        model=str(model),
        pool="large",
        step_s=one.step_s,
        session_s=one.session_s,
        max_running=8,
        round_trip_s={at: WORKERS.round_trip_s[number, d] for d, at in enumerate(drafters)},
    )


@contextmanager
def running(directory: Path, model: Path) -> Iterator[Running]:
    """Runs the fleet for the length of a block.

    Args:
        directory: For the log.
        model: What all of them run.
    """
    with SimulatedWorkers(directory / "workers.log") as processes:
        drafters = processes.start(*(drafter_spec(n, model) for n in range(4)))
        verifiers = processes.start(*(verifier_spec(n, model, drafters) for n in range(3)))
        yield Running(processes, verifiers, drafters, model)


@dataclass(frozen=True)
class Gateway:
    """What a gateway has inside."""

    fleet: WatchedFleet
    generations: Generations


@asynccontextmanager
async def gateway(verifiers: Sequence[str], drafters: Sequence[str]) -> AsyncIterator[Gateway]:
    """A gateway that knows these workers, once it has reached all of them."""
    async with WatchedFleet({}, interval_ms=100, on_change=lambda _: None) as fleet:
        fleet.update("verifier", verifiers)
        fleet.update("drafter", drafters)
        sessions = Sessions(fleet, MemorySessions(60))
        found = Gateway(fleet, Generations(fleet, sessions, FailoverConfig(wait_s=PATIENCE_S)))
        await until(lambda: ready(fleet) == len(verifiers) + len(drafters))
        yield found
        await sessions.close()


def ready(fleet: WatchedFleet) -> int:
    """Workers that are."""
    return sum(view.state == "ready" for view in fleet.workers())


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that is bound to happen, however slow the machine is."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the condition is other tasks' and processes'
            await asyncio.sleep(0.1)


def decided(fleet: WatchedFleet, sessions: int) -> Counter[tuple[str, str]]:
    """Where so many sessions would go if they all came now, the fleet being empty.

    That is what the gateway has learned, without what happens to run where at the moment.
    """
    verifiers, drafters = fleet.candidates()
    placed: Counter[tuple[str, str]] = Counter()
    for _ in range(sessions):
        busy = _counts(placed)
        found = place("draft", _emptied(verifiers, busy), _emptied(drafters, busy))
        placed[found.verifier, found.drafters[0]] += 1
    return placed


def by_number(placed: Mapping[tuple[str, str], int], fleet: Running) -> Counter[Place]:
    """The same, with workers by their numbers."""
    return Counter(
        {
            (fleet.verifiers.index(verifier), fleet.drafters.index(drafter)): sessions
            for (verifier, drafter), sessions in placed.items()
            if sessions
        }
    )


def _counts(placed: Mapping[tuple[str, str], int]) -> Counter[str]:
    busy: Counter[str] = Counter()
    for pair, sessions in placed.items():
        for address in pair:
            busy[address] += sessions
    return busy


def _emptied(workers: Sequence[Candidate], busy: Mapping[str, int]) -> list[Candidate]:
    """The workers with these sessions on them, and no others."""
    return [
        replace(
            each,
            in_flight=busy[each.address],
            load=each.load and replace(each.load, running=busy[each.address], waiting=0),
        )
        for each in workers
    ]
