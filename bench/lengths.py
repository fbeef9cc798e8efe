"""`python -m bench.lengths`: what methods bring behind texts of several lengths.

Behind a long text a row costs more and drafts are wrong more often. Texts are made of the bundled
prompts, one after another, each from another place on. Lengths and methods take turns, as those of
a deployment's requests do: what one length teaches must not spoil the choices of another.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from typing import get_args

from paceline import Client
from rich.console import Console

from bench import prompts
from bench.arguments import at_least, ending_well, known_method, several
from bench.deployment import FORGETFUL
from bench.progress import Progress, shown
from bench.settings import PLAIN
from gateway.validation import PROPOSERS
from launcher.cluster import Cluster
from launcher.commandline import WorkerOptions
from launcher.commands import DType
from launcher.models import choose
from launcher.timing import Timed, rate, timed

STRIDE = 97
"""Tokens by which the place moves where a text begins."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One method behind texts of one length."""

    prompt_tokens: int
    """Before the tokens that were timed."""
    method: str
    """Which."""
    tokens_per_s: float
    """Over all texts."""
    times_plain: float
    """Median of the texts; 0 where they came in one message each."""
    accepted: float
    """Share of its draft tokens that were right; 0 where there were none."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run it and print a line for each length and method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--tokens",
        type=several(at_least(1)),
        default="128,512,1024,1536",
        help="of each text before them (default: %(default)s)",
    )
    parser.add_argument(
        "--methods",
        type=several(known_method),
        default=",".join(PROPOSERS),
        help="beside plain (default: %(default)s)",
    )
    parser.add_argument("--texts", type=at_least(1), default=6, help="of each length")
    parser.add_argument("--max-tokens", type=at_least(2), default=128, help="tokens after each")
    parser.add_argument("--dtype", default="auto", choices=get_args(DType))
    parser.add_argument("--json", action="store_true", help="one line for machines")
    given = parser.parse_args(argv)
    options = WorkerOptions(dtype=given.dtype)
    cluster = Cluster(models=choose(), options=options, environment=FORGETFUL)
    console = Console(stderr=True)
    with cluster, Client(cluster.address) as client, shown(console) as progress:
        lines = measure(
            client, given.tokens, given.methods, given.texts, given.max_tokens, progress
        )
    if given.json:
        print(json.dumps([asdict(line) for line in lines]))
        return
    print("before  method        tokens/s  x plain  accepted")
    for line in lines:
        print(
            f"{line.prompt_tokens:6d}  {line.method:12s}  {line.tokens_per_s:8.0f}"
            f"  {line.times_plain:7.2f}  {line.accepted:8.2f}"
        )


def measure(
    client: Client,
    lengths: Sequence[int],
    methods: Sequence[str],
    texts: int,
    max_tokens: int,
    progress: Progress,
) -> list[Line]:
    """Decode behind texts of each length, by each method and plainly.

    Args:
        client: Of a deployment that nobody else uses.
        lengths: Tokens of the texts.
        methods: Beside plain.
        texts: Of each length.
        max_tokens: Tokens after each text.
        progress: Told how far it is.
    """
    words = [id_ for ids in prompts.encode(prompts.load(), client) for id_ in ids]
    ways = dict.fromkeys((PLAIN, *methods))
    every = [(length, method) for length in lengths for method in ways]
    done: dict[tuple[int, str], list[Timed]] = {each: [] for each in every}
    for text in range(texts):  # each begins with another one: what one leaves behind meets all
        for at, (length, method) in enumerate([*every[text:], *every[:text]]):
            progress(f"{method} behind {length}", text * len(every) + at, texts * len(every))
            ids = list(islice(cycle(words), text * STRIDE, text * STRIDE + length))
            generation = client.generate(
                token_ids=ids, max_tokens=max_tokens, method=method, ignore_eos=True
            )
            done[length, method].append(timed(generation))
    return [summed(*each, runs, done[each[0], PLAIN]) for each, runs in done.items()]


def summed(length: int, method: str, runs: Sequence[Timed], plain: Sequence[Timed]) -> Line:
    """What a method came to.

    Args:
        length: Of the texts.
        method: Which.
        runs: By it.
        plain: Without drafts, behind the same texts.
    """
    assert [run.result.token_ids for run in runs] == [run.result.token_ids for run in plain], (
        "one seed, one text"
    )
    drafted = sum(run.result.speculation.drafted_tokens for run in runs)
    accepted = sum(run.result.speculation.accepted_tokens for run in runs)
    rates = [(rate([run]), rate([beside])) for run, beside in zip(runs, plain, strict=True)]
    ratios = [there / plainly for there, plainly in rates if plainly]
    return Line(
        prompt_tokens=length,
        method=method,
        tokens_per_s=rate(runs),
        times_plain=statistics.median(ratios) if ratios else 0.0,
        accepted=accepted / drafted if drafted else 0.0,
    )


if __name__ == "__main__":
    with ending_well():
        main()
