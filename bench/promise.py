"""`python -m bench.promise`: one seed, one text, tried out with every method and hybrid.

Plain decoding, one prompt at a time, says what is right. Then every method generates every case,
several at once and the methods side by side in the verifier's batches, and ids are compared one by
one: through client, gateway, verifier and drafter, each a process of its own.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer
from paceline import Client, Result
from rich.console import Console

from bench import cases, prompts
from bench.arguments import several
from bench.cases import Case
from bench.commands import WIDE
from bench.deployment import FORGETFUL, offered
from bench.differences import Tally
from bench.plan import choose
from bench.progress import Progress, shown
from bench.settings import METHODS, PLAIN
from bench.tables import Cells
from common.commands import INTERRUPTED
from common.errors import StartupError
from launcher.cluster import Cluster
from launcher.commandline import WorkerOptions
from launcher.commands import Draft, Eagle, Medusa, Target, Threads, ending_well_when_interrupted
from launcher.drafting import await_draft, check_drafter
from launcher.models import Models
from launcher.models import choose as choose_models

AUTO = "auto"
TRIPLE = "draft+lookahead+ngram"


BOTH = ("bfloat16", "float32")
"""Number formats of the weights, which are tried one after the other."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What to try."""

    models: Models
    """What is served and what guesses."""
    threads: int
    """CPU threads of each model's process; 0 shares the cores."""
    methods: tuple[str, ...]
    """What decodes; empty takes what `everything` says."""
    generations: int
    """Of each method."""
    max_tokens: int
    """Most tokens of each."""
    concurrency: int
    """Generations at once."""
    share_ngrams: bool
    """Whether requests learn from each other's n-grams."""

    def run(self, dtype: str, progress: Progress) -> list[Tally]:
        """Try it with one number format; return a tally a method.

        Args:
            dtype: torch dtype of the weights.
            progress: Told how far it is.

        Raises:
            StartupError: A method that was asked for is not on offer, or there are no drafts.
        """
        progress(f"{dtype}: starting", 0, 1)
        options = WorkerOptions(dtype=dtype, device="cpu", threads=self.threads)
        environment = {} if self.share_ngrams else FORGETFUL
        cluster = Cluster(models=self.models, options=options, environment=environment)
        with cluster, Client(cluster.address) as client:
            if self.models.draft:
                await_draft(cluster, client)
            there = offered(client)
            methods, lacking = choose(self.methods or everything(there), (*there, AUTO))
            if lacking:
                raise StartupError("; ".join(lacking))
            made = cases.make(prompts.encode(prompts.load(), client), self.generations)
            found = self._compare(client, made, methods, dtype, progress)
            check_drafter(cluster)
            return found

    def _compare(
        self,
        client: Client,
        made: Sequence[Case],
        methods: Sequence[str],
        dtype: str,
        progress: Progress,
    ) -> list[Tally]:
        plain = []
        for done, case in enumerate(made):
            progress(f"{dtype}: {PLAIN}, one at a time", done, len(made))
            plain.append(self._generate(client, case, PLAIN).token_ids)
        tallies = {method: Tally(method=method, dtype=dtype) for method in methods}
        jobs = list(itertools.product(range(len(made)), methods))
        what = f"{dtype}: {len(methods)} methods, {self.concurrency} at once"
        with ThreadPoolExecutor(self.concurrency) as pool:
            running = {
                pool.submit(self._generate, client, made[index], method): (index, method)
                for index, method in jobs
            }
            try:
                for done, ended in enumerate(as_completed(running)):
                    progress(what, done, len(jobs))
                    index, method = running[ended]
                    tallies[method].add(made[index], ended.result(), plain[index])
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return list(tallies.values())

    def _generate(self, client: Client, case: Case, method: str) -> Result:
        return case.start(client, method, self.max_tokens).result()


def everything(there: Sequence[str]) -> tuple[str, ...]:
    """Return all there is to try: single methods, pairs of them, a triple and auto.

    Args:
        there: Single methods that the deployment offers.
    """
    known = [method for method in METHODS if method in there]
    single = [*known, *(method for method in there if method not in known)]
    drafting = [method for method in single if method != PLAIN]
    hybrids = ["+".join(pair) for pair in itertools.combinations(drafting, 2)]
    if set(TRIPLE.split("+")) <= set(there):
        hybrids.append(TRIPLE)
    return (*single, *hybrids, AUTO)


def table(dtype: str, tallies: Sequence[Tally]) -> Cells:
    """Return the tallies of one number format as a table."""
    return Cells(
        f"{dtype}: ids that are not those of plain decoding",
        ("method", "greedy", "drawn", "tokens", "differing", "in generations", "tokens/pass"),
        [
            [
                tally.method,
                str(tally.greedy),
                str(tally.drawn),
                str(tally.tokens),
                str(tally.differing_tokens),
                str(tally.differing_generations),
                f"{tally.tokens_per_pass:.2f}",
            ]
            for tally in tallies
        ],
    )


app = typer.Typer(add_completion=False)


@app.command(epilog="Example: python -m bench.promise --generations 1000 --dtype bfloat16")
def promise(
    target: Target = None,
    draft: Draft = None,
    medusa: Medusa = None,
    eagle: Eagle = None,
    dtype: Annotated[
        Literal["bfloat16", "float32", "both"], typer.Option(help="Number format of the weights")
    ] = "both",
    threads: Threads = 0,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods with commas, hybrids as draft+ngram (default: all that are offered, "
            "pairs of them, a triple, auto)"
        ),
    ] = "",
    generations: Annotated[
        int, typer.Option(min=2, help="Of each method, every other one drawn")
    ] = 200,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each generation")] = 48,
    concurrency: Annotated[int, typer.Option(min=1, help="Generations at once")] = 8,
    share_ngrams: Annotated[
        bool,
        typer.Option(
            "--share-ngrams",
            help="Let requests learn from each other, so that most guesses are right",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON only")] = False,
) -> None:
    """Check that every method writes the ids of plain decoding; exit with 1 where one does not."""
    console = Console(quiet=as_json)
    if not console.is_terminal:
        console.width = WIDE
    tallies: list[Tally] = []
    with ending_well_when_interrupted(INTERRUPTED):
        sweep = Sweep(
            models=choose_models(target, draft, medusa, eagle),
            threads=threads,
            methods=several(str)(methods),
            generations=generations,
            max_tokens=max_tokens,
            concurrency=concurrency,
            share_ngrams=share_ngrams,
        )
        for numerics in BOTH if dtype == "both" else (dtype,):
            with shown(console) as progress:
                found = sweep.run(numerics, progress)
            console.print(table(numerics, found).drawn())
            tallies += found
    if as_json:
        print(json.dumps([asdict(tally) for tally in tallies]))
    console.print(*conclusion(tallies), sep="\n", highlight=False, soft_wrap=True)
    if any(tally.differing_generations for tally in tallies):
        raise typer.Exit(1)


def conclusion(tallies: Sequence[Tally]) -> list[str]:
    """Return what all of it comes to, and where each method that differed did so first."""
    generations = sum(tally.greedy + tally.drawn for tally in tallies)
    differing = sum(tally.differing_tokens for tally in tallies)
    tokens = sum(tally.tokens for tally in tallies)
    lines = [f"{generations} generations, {tokens} tokens, {differing} of them differ"]
    for tally in tallies:
        if first := tally.first:
            lines.append(
                f"{tally.dtype}, {tally.method}: first at prompt {first.prompt} (the first "
                f"{first.prompt_tokens} tokens of it), seed {first.seed}, "
                f"{'drawn' if first.drawn else 'greedy'}, position {first.position}"
            )
    return lines


if __name__ == "__main__":
    app()
