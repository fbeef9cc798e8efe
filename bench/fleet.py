"""How near placement comes to the best assignment of sessions to workers, measured.

    python -m bench.fleet [SECONDS]

Three verifiers and four drafters of different speeds and distances run as real processes that
take the time they are told to take. The same sessions are placed by what the gateway measures, as
a search that knows the true costs would have them, and each in turn on the next pair. For each of
the three the table has tokens a second as measured, and by the rate model.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.arguments import ending_well, some_seconds
from bench.assignment import Drafter, Place, Verifier, Workers, search, tokens_per_s
from bench.simulated.spec import WorkerSpec
from bench.simulated.traffic import Traffic, WatchedFleet
from bench.simulated.workers import SimulatedWorkers
from common.store.sessions import MemorySessions
from gateway.generation import Generations
from gateway.model import Model
from gateway.placement import Placement
from gateway.sessions import Sessions

MODEL = Path(__file__).parents[1] / "models" / "demo" / "draft"
VOCAB_SIZE = 4096
SESSIONS = 6
MAX_TOKENS = 64
WARM_UP_S = 90.0
SECONDS = 20.0
REPETITIONS = 3
NEAR_S, FAR_S = 0.004, 0.060

_NEAR = {(0, 1), (1, 0), (2, 0), (2, 1), (0, 2), (1, 3)}

WORKERS = Workers(
    verifiers=(
        Verifier(step_s=0.080, session_s=0.008),
        Verifier(step_s=0.100, session_s=0.008),
        Verifier(step_s=0.120, session_s=0.008),
    ),
    drafters=(
        Drafter(token_s=0.004, acceptance=0.9),
        Drafter(token_s=0.006, acceptance=0.8),
        Drafter(token_s=0.020, acceptance=0.85),
        Drafter(token_s=0.030, acceptance=0.5),
    ),
    round_trip_s={(v, d): NEAR_S if (v, d) in _NEAR else FAR_S for v in range(3) for d in range(4)},
    coverage=0.8,
)

MEASURED, SEARCHED, IN_TURN = "measured gain", "search", "in turn"


class PinnedFleet(WatchedFleet):
    """A fleet whose requests go where they are told.

    Attributes:
        wanted: Sessions for each pair; none leaves it to measured gain.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.wanted: Counter[tuple[str, str]] = Counter()

    def place(
        self, model: Model, method: str, owner: str | None = None, *, tokens: int = 0
    ) -> Placement:
        """Chooses the pair that lacks most sessions."""
        found = super().place(model, method, owner, tokens=tokens)
        if not self.wanted:
            return found
        lacking = self.wanted - self.active
        verifier, drafter = max(lacking or self.wanted, key=(lacking or self.wanted).__getitem__)
        return replace(found, verifier=verifier, drafters=(drafter,))


def drafter_specs() -> list[WorkerSpec]:
    """Return what the drafters are told."""
    return [
        WorkerSpec(
            name=f"drafter {number}",
            tier="drafter",
            model=str(MODEL),
            step_s=one.token_s,
            acceptance=one.acceptance,
        )
        for number, one in enumerate(WORKERS.drafters)
    ]


def verifier_specs(drafters: Sequence[str]) -> list[WorkerSpec]:
    """Return what the verifiers are told, of drafters at these addresses."""
    return [
        WorkerSpec(
            name=f"verifier {number}",
            tier="verifier",
            model=str(MODEL),
            step_s=one.step_s,
            session_s=one.session_s,
            round_trip_s={at: WORKERS.round_trip_s[number, d] for d, at in enumerate(drafters)},
        )
        for number, one in enumerate(WORKERS.verifiers)
    ]


async def measure(
    verifiers: Sequence[str],
    drafters: Sequence[str],
    seconds: float,
    progress: Callable[[str], None],
) -> dict[str, list[tuple[float, float]]]:
    """Measure all ways, one after the other; return measured and modelled rates by way.

    Measured gain comes first: it is to know of pairs what its own sessions measured, and nothing of
    those that others chose.
    """

    def address(place: Place) -> tuple[str, str]:
        return verifiers[place[0]], drafters[place[1]]

    best = search(WORKERS, SESSIONS)
    turns = Counter(WORKERS.places[n * 5 % len(WORKERS.places)] for n in range(SESSIONS))
    ways = {MEASURED: Counter[Place](), SEARCHED: best, IN_TURN: turns}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    async with PinnedFleet({}, interval_ms=250, on_change=lambda _: None) as fleet:
        fleet.update("verifier", verifiers)
        fleet.update("drafter", drafters)
        sessions = Sessions(fleet, MemorySessions(60))
        generations = Generations(fleet, sessions)
        while not all(view.state == "ready" for view in fleet.workers()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        async with Traffic(
            generations, clients=SESSIONS, vocab_size=VOCAB_SIZE, max_tokens=MAX_TOKENS
        ) as traffic:
            progress("warming up")
            await asyncio.sleep(WARM_UP_S)
            for name, wanted in ways.items():
                for repetition in range(REPETITIONS):
                    progress(f"{repetition + 1}/{REPETITIONS}: {name}")
                    fleet.wanted = Counter({address(p): n for p, n in wanted.items()})
                    await asyncio.sleep(seconds / 2)  # until those placed before are done
                    found[name].append(await _turn(fleet, traffic, seconds, verifiers, drafters))
        await sessions.close()
    return found


async def _turn(
    fleet: PinnedFleet,
    traffic: Traffic,
    seconds: float,
    verifiers: Sequence[str],
    drafters: Sequence[str],
) -> tuple[float, float]:
    started, tokens, modelled = time.monotonic(), traffic.tokens, []
    while time.monotonic() < started + seconds:
        await asyncio.sleep(0.5)
        modelled.append(tokens_per_s(WORKERS, _now(fleet, verifiers, drafters)))
    measured = (traffic.tokens - tokens) / (time.monotonic() - started)
    return measured, sum(modelled) / len(modelled)


def _now(fleet: WatchedFleet, verifiers: Sequence[str], drafters: Sequence[str]) -> Counter[Place]:
    return Counter(
        {
            (verifiers.index(verifier), drafters.index(drafter)): count
            for (verifier, drafter), count in fleet.active.items()
            if count
        }
    )


def table(found: dict[str, list[tuple[float, float]]]) -> Table:
    """Draw what was found: medians, and shares of the search's."""
    drawn = Table(title=f"{SESSIONS} sessions, 3 verifiers, 4 drafters: tokens/s")
    for head in ("placed by", "measured", "of the search", "by the model", "of the search"):
        drawn.add_column(head, justify="left" if head == "placed by" else "right")
    best = [median(values) for values in zip(*found[SEARCHED], strict=True)]
    for name, turns in found.items():
        measured, modelled = (median(values) for values in zip(*turns, strict=True))
        drawn.add_row(
            name,
            f"{measured:.0f}",
            f"{measured / best[0]:.0%}",
            f"{modelled:.0f}",
            f"{modelled / best[1]:.0%}",
        )
    return drawn


def main(argv: Sequence[str] | None = None) -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "seconds",
        nargs="?",
        type=some_seconds,
        default=SECONDS,
        help="of a turn (default: %(default)g)",
    )
    seconds = parser.parse_args(argv).seconds
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "workers.log"
        with SimulatedWorkers(log) as workers:
            drafters = workers.start(*drafter_specs())
            verifiers = workers.start(*verifier_specs(drafters))

            def progress(what: str) -> None:
                console.print(what, style="dim")

            found = asyncio.run(measure(verifiers, drafters, seconds, progress))
    console.print(table(found))


if __name__ == "__main__":
    with ending_well():
        main()
