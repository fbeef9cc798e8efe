"""`python -m bench.traffic`: how long users wait where requests come as they please.

They arrive at random (a Poisson process), whether those before are done or not, as from many users
who know nothing of each other; of some rate on they queue. Methods take turns and get the same
requests at the same moments. A wait counts from the moment that a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from paceline import AsyncClient, Client
from rich.console import Console

from bench import plots, prompts
from bench.arguments import at_least, ending_well, known_method, several, within
from bench.deployment import FORGETFUL
from bench.progress import Progress, shown
from bench.settings import DRAFT, PLAIN
from launcher.cluster import Cluster
from launcher.commandline import Device, WorkerOptions
from launcher.commands import DType
from launcher.drafting import await_draft
from launcher.models import choose

PICTURES = ".png", ".svg", ".pdf"
TEMPERATURE = 0.7
LEAST_PART = 1 / 8
"""A request asks for this part of the most tokens at least."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request."""

    at_s: float
    """When it is due, from the start of a pass."""
    prompt: int
    """Which of the prompts."""
    tokens: int
    """How many it asks for."""
    seed: int
    """Of its text."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """What became of a request; seconds count from when it was due."""

    first_s: float
    """To its first token."""
    whole_s: float
    """To its last."""
    ids: tuple[int, ...]
    """Its text."""

    @property
    def token_s(self) -> float:
        """For each token after the first."""
        return (self.whole_s - self.first_s) / max(len(self.ids) - 1, 1)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Milliseconds that half, 90 % and 99 % of the requests waited at most."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of these waits."""
        p50, p90, p99 = (1e3 * np.percentile(seconds, [50, 90, 99])).tolist()
        return cls(p50=p50, p90=p90, p99=p99)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method at one rate, over all passes."""

    rate: float
    """Requests a second that arrived, in the mean."""
    method: str
    """Which."""
    requests: int
    """How many."""
    tokens_per_s: float
    """From the start of a pass to its last token."""
    at_once: float
    """Requests that waited at a time, in the mean."""
    first: Spread
    """To the first token."""
    token: Spread
    """For each further one, in the mean of a request."""
    whole: Spread
    """To the last token."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run it and print a line for each rate and method."""
    given = _arguments(argv)
    models = choose(given.target, given.draft)
    options = WorkerOptions(dtype=given.dtype, device=given.device)
    cluster = Cluster(models=models, options=options, environment=FORGETFUL)
    console = Console(stderr=True)
    with cluster, Client(cluster.address) as client, shown(console) as progress:
        if models.draft:
            await_draft(cluster, client)
        texts = prompts.encode(prompts.load(), client)
        every = {
            rate: [
                arrivals(rate, given.seconds, len(texts), given.max_tokens, seed)
                for seed in range(given.repetitions)
            ]
            for rate in given.rates
        }
        lines = asyncio.run(measure(cluster.address, texts, every, given.methods, progress))
    if given.plot:
        plots.draw_waits(lines, given.plot)
    if given.json:
        print(json.dumps([asdict(line) for line in lines]))
        return
    print(f"{'':43s}{'first token, ms':^20s}{'each further, ms':^20s}{'whole text, ms':^22s}")
    print("rate/s  method        requests  tokens/s  at once" + "    p50    p90    p99" * 3)
    for line in lines:
        print(
            f"{line.rate:6g}  {line.method:12s}  {line.requests:8d}  {line.tokens_per_s:8.0f}"
            f"  {line.at_once:7.1f}{_cells(line.first)}{_cells(line.token)}{_cells(line.whole)}"
        )


def _cells(spread: Spread) -> str:
    return "".join(f"{number:7.{1 if number < 100 else 0}f}" for number in asdict(spread).values())


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        epilog="Example: python -m bench.traffic --rates 1,4 --methods plain,auto --plot w.png",
    )
    parser.add_argument(
        "--rates",
        type=several(within(0.01, 1000)),
        default="1,2,4",
        help="requests a second (default: %(default)s)",
    )
    parser.add_argument(
        "--methods",
        type=several(known_method),
        default=f"{PLAIN},{DRAFT}",
        help="(default: %(default)s)",
    )
    parser.add_argument("--seconds", type=within(1, 3600), default=20, help="of a pass")
    parser.add_argument("--repetitions", type=at_least(1), default=3, help="passes of each")
    parser.add_argument("--max-tokens", type=at_least(2), default=256, help="most of a request")
    parser.add_argument("--target", type=Path, help="model whose text is served (default: bundled)")
    parser.add_argument("--draft", type=Path, help="model that guesses")
    parser.add_argument("--dtype", default="auto", choices=get_args(DType))
    parser.add_argument("--device", default="auto", choices=get_args(Device))
    parser.add_argument("--plot", type=_picture, metavar="FILE", help="draw waits by rate")
    parser.add_argument("--json", action="store_true", help="one line for machines")
    return parser.parse_args(argv)


def _picture(text: str) -> Path:
    """Read the name of a file to draw into: that it cannot be written shows before all else."""
    path = Path(text)
    if not plots.available():
        raise argparse.ArgumentTypeError("needs matplotlib, which is not installed")
    if path.suffix not in PICTURES or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"must end with {', '.join(PICTURES)} and stand in a directory that exists, got {text}"
        )
    return path


def arrivals(rate: float, seconds: float, count: int, max_tokens: int, seed: int) -> list[Arrival]:
    """Requests of a pass, the same ones for the same seed; one at least.

    Args:
        rate: Of their arrival, a second.
        seconds: In which they arrive.
        count: Of prompts that they choose from.
        max_tokens: Most that one asks for.
        seed: Of all chance in them.
    """
    source = random.Random(seed)
    found, at_s = list[Arrival](), 0.0
    while not found or at_s < seconds:
        found.append(
            Arrival(
                at_s=at_s,
                prompt=source.randrange(count),
                tokens=source.randint(math.ceil(LEAST_PART * max_tokens), max_tokens),
                seed=source.getrandbits(53),
            )
        )
        at_s += source.expovariate(rate)
    return found


async def measure(
    address: str,
    texts: Sequence[Sequence[int]],
    every: dict[float, list[list[Arrival]]],
    methods: Sequence[str],
    progress: Progress,
) -> list[Line]:
    """Send all requests by every method.

    Args:
        address: Of a gateway that nobody else uses.
        texts: Ids of the prompts.
        every: Arrivals of each pass, by their rate.
        methods: In turns; the order turns round from pass to pass.
        progress: Told before each pass.
    """
    passes = [
        (rate, method, arrived)
        for rate, repetitions in every.items()
        for index, arrived in enumerate(repetitions)
        for method in (methods if index % 2 == 0 else reversed(methods))
    ]
    waits: dict[tuple[float, str], list[Wait]] = {}
    spans_s: dict[tuple[float, str], float] = {}
    async with AsyncClient(address) as client:
        for method in methods:  # pays for what is set up once
            await client.generate(token_ids=texts[0], max_tokens=16, method=method).result()
        for done, (rate, method, arrived) in enumerate(passes):
            progress(f"{method} at {rate:g}/s", done, len(passes))
            began = time.perf_counter()
            waits.setdefault((rate, method), []).extend(
                await asyncio.gather(
                    *(_send(client, texts[each.prompt], each, began, method) for each in arrived)
                )
            )
            spans_s[rate, method] = spans_s.get((rate, method), 0) + time.perf_counter() - began
    ways = [(rate, method) for rate in every for method in methods]
    for rate, method in ways:
        same = [wait.ids for wait in waits[rate, methods[0]]]
        assert [wait.ids for wait in waits[rate, method]] == same, "one seed, one text"
    return [summed(*way, waits[way], spans_s[way]) for way in ways]


async def _send(
    client: AsyncClient, ids: Sequence[int], arrival: Arrival, began: float, method: str
) -> Wait:
    """Send a request when it is due."""
    await asyncio.sleep(began + arrival.at_s - time.perf_counter())
    generation = client.generate(
        token_ids=ids,
        max_tokens=arrival.tokens,
        method=method,
        temperature=TEMPERATURE,
        seed=arrival.seed,
        ignore_eos=True,
    )
    first_s = last_s = 0.0
    async for chunk in generation:
        if chunk.token_ids:
            last_s = time.perf_counter() - began - arrival.at_s
            first_s = first_s or last_s
    result = await generation.result()
    return Wait(first_s=first_s, whole_s=last_s, ids=result.token_ids)


def summed(rate: float, method: str, waits: Sequence[Wait], span_s: float) -> Line:
    """What a method came to at a rate.

    Args:
        rate: Requests a second.
        method: Which.
        waits: Of all requests.
        span_s: How long the passes took, all together.
    """
    return Line(
        rate=rate,
        method=method,
        requests=len(waits),
        tokens_per_s=sum(len(wait.ids) for wait in waits) / span_s,
        at_once=sum(wait.whole_s for wait in waits) / span_s,
        first=Spread.of([wait.first_s for wait in waits]),
        token=Spread.of([wait.token_s for wait in waits]),
        whole=Spread.of([wait.whole_s for wait in waits]),
    )


if __name__ == "__main__":
    with ending_well():
        main()
