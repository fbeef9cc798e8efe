"""`python -m bench.traffic`: how long users wait where requests come as they please.

They arrive at random (a Poisson process), whether those before are done or not, as from many users
who know nothing of each other; from some rate on they queue, and then some are refused. Methods
take turns and get the same requests at the same moments, but for two ids of each prompt, so that
none has a cache filled for it. A wait counts from the moment that a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from paceline import Client
from rich.console import Console

from bench import plots, prompts
from bench.arguments import at_least, ending_well, known_method, several, within
from bench.deployment import FORGETFUL
from bench.progress import shown
from bench.settings import DRAFT, PLAIN
from bench.unseen import Unseen
from bench.waits import Line, arrivals, measure
from launcher.cluster import Cluster
from launcher.commandline import Device, WorkerOptions
from launcher.commands import DType
from launcher.drafting import await_draft, check_drafter
from launcher.models import choose

PICTURES = ".png", ".svg", ".pdf"
HEADER = (
    " " * 56 + "   first token, ms      each further, ms      whole text, ms   \n"
    "rate/s  method        requests  refused  tokens/s  at once" + "    p50    p90    p99" * 3
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run it and print a line for each method at a rate once that is done."""
    given = _arguments(argv)
    models = choose(given.target, given.draft)
    methods = given.methods or ((PLAIN, DRAFT) if models.draft else (PLAIN,))
    options = WorkerOptions(dtype=given.dtype, device=given.device)
    cluster = Cluster(models=models, options=options, environment=FORGETFUL)
    lines: list[Line] = []

    def check() -> None:
        if models.draft:
            check_drafter(cluster)

    def tell(line: Line) -> None:
        if not given.json:
            print(line.text() if lines else f"{HEADER}\n{line.text()}", flush=True)
        lines.append(line)

    try:
        with cluster, Client(cluster.address) as client, shown(Console(stderr=True)) as progress:
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
            unseen = Unseen(prompts.ordinary(client))
            asyncio.run(
                measure(cluster.address, texts, unseen, every, methods, check, progress, tell)
            )
    finally:
        if given.json and lines:
            print(json.dumps([asdict(line) for line in lines]), flush=True)
    if given.plot:
        plots.draw_waits(lines, given.plot)


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
        help=f"(default: {PLAIN}, and {DRAFT} where there is a drafter)",
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
    given = parser.parse_args(argv)
    if not given.rates:
        parser.error("--rates: names none")
    return given


def _picture(text: str) -> Path:
    """Read the name of a file to draw into: most that is wrong with it shows before all else."""
    path = Path(text)
    if not plots.available():
        raise argparse.ArgumentTypeError("needs matplotlib, which is not installed")
    writable = os.access(path if path.exists() else path.parent, os.W_OK)
    if path.suffix not in PICTURES or path.is_dir() or not writable:
        raise argparse.ArgumentTypeError(
            f"must be a file that can be written and ends with {', '.join(PICTURES)}, got {text}"
        )
    return path


if __name__ == "__main__":
    with ending_well():
        main()
