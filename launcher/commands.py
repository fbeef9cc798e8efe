"""The commands `paceline up` and `paceline demo`, loaded by the SDK's command line.

Arguments and exit codes; the work is in `launcher.cluster` and `launcher.demo`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from paceline import Client
from paceline.cli.render import visible
from rich.console import Console

from common import commands
from launcher import interrupt, models
from launcher.cluster import Cluster
from launcher.commandline import LOOPBACK, MOST_THREADS, Device, WorkerOptions
from launcher.demo import Plan, run
from launcher.display import Display
from launcher.drafting import await_draft

CHECK_S = 0.25


DType = Literal["auto", "bfloat16", "float16", "float32"]
"""Number format of the weights."""

Quantize = Literal["none", "int8", "int4"]
"""What weights are rounded to."""

DraftQuantize = Literal["auto", Quantize]
"""What a drafter's weights are rounded to."""

Target = Annotated[
    Path | None,
    typer.Option(help="Directory of the model whose text is served (default: the bundled one)"),
]
Draft = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the model that guesses (default: bundled; none beside --target)"
    ),
]
Medusa = Annotated[
    Path | None,
    typer.Option(
        help="Directory of Medusa heads for the target (default: bundled; none beside --target)"
    ),
]
Eagle = Annotated[
    Path | None,
    typer.Option(
        help="Directory of an EAGLE-3 head for the target, or of a Gemma 4 assistant; the target's "
        "own where it brings multi-token prediction along (default: bundled; none beside --target)"
    ),
]
DTypeOption = Annotated[DType, typer.Option(help="Number format; auto is the model's own")]
QuantizeOption = Annotated[
    Quantize, typer.Option(help="Round the target's weights: another model, with its own text")
]
DraftQuantizeOption = Annotated[
    DraftQuantize,
    typer.Option(help="Round the drafter's weights: the text stays what it is; auto if it pays"),
]
DeviceOption = Annotated[Device, typer.Option(help="Where the models run")]
Threads = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_THREADS,
        help="CPU threads of each model; 0 shares the cores between the two",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the services' logs")]


def up(
    target: Target = None,
    draft: Draft = None,
    medusa: Medusa = None,
    eagle: Eagle = None,
    dtype: DTypeOption = "auto",
    quantize: QuantizeOption = "none",
    draft_quantize: DraftQuantizeOption = "auto",
    device: DeviceOption = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one")] = 7070,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines in, in plaintext, all of them")
    ] = False,
    threads: Threads = 0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65533,
            help="Serve metrics: the gateway's here, verifier's and drafter's on the next two",
        ),
    ] = None,
    store: Annotated[bool, typer.Option(help="Start the embedded store")] = True,
    verbose: Verbose = False,
) -> None:
    """Start store, drafter, verifier and gateway here, and stop them with Ctrl-C."""
    console = plain_console()
    options = WorkerOptions(
        dtype=dtype,
        quantize=quantize,
        draft_quantize=draft_quantize,
        device=device,
        threads=threads,
    )
    with (
        ending_well_when_interrupted(),
        Display(console, live=not verbose) as display,
        Cluster(
            models=(chosen := models.choose(target, draft, medusa, eagle)),
            options=options,
            host=host,
            port=port,
            insecure=insecure,
            with_store=store,
            verbose=verbose,
            watch=display.update,
            metrics_port=metrics_port,
        ) as cluster,
    ):
        display.settle()
        console.print(f"\nServing on {cluster.address}. Ctrl-C stops.")
        attempt = f"paceline generate --address {cluster.address} {chosen.prompt}"
        console.print(f"Try: {attempt}\n", soft_wrap=True)
        if metrics_port is not None:
            host = cluster.address.rpartition(":")[0]
            console.print(f"Metrics: http://{host}:{metrics_port}/metrics")
        stay(cluster)


def demo(
    target: Target = None,
    draft: Draft = None,
    medusa: Medusa = None,
    eagle: Eagle = None,
    dtype: DTypeOption = "auto",
    device: DeviceOption = "auto",
    threads: Threads = 0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens for each prompt")] = 96,
    repetitions: Annotated[int, typer.Option(min=1, help="Timed runs of each prompt")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON only")] = False,
    verbose: Verbose = False,
) -> None:
    """Stream text from real services on bundled models, and measure what speculation gains."""
    console = plain_console()
    options = WorkerOptions(dtype=dtype, device=device, threads=threads)
    same_text = False
    with (
        ending_well_when_interrupted(commands.INTERRUPTED),
        Display(console, live=not verbose, quiet=as_json) as display,
    ):
        chosen = models.choose(target, draft, medusa, eagle)
        chosen.require_drafts()
        with (
            Cluster(
                models=chosen, options=options, verbose=verbose, watch=display.update
            ) as cluster,
            Client(cluster.address) as client,
        ):
            display.hush()
            if chosen.draft:
                await_draft(cluster, client)
            plan = Plan(max_tokens=max_tokens, repetitions=repetitions)
            outcome = run(client, chosen.target, plan, None if as_json else console)
            if as_json:
                print(outcome.to_json())
            else:
                console.print(outcome.lines(), soft_wrap=True)
            same_text = outcome.same_text
    if not same_text:
        raise typer.Exit(1)


def plain_console() -> Console:
    """Return what to print on: as it is, an address of IPv6 may look like markup."""
    return Console(markup=False, emoji=False, highlight=False)


def stay(cluster: Cluster) -> None:
    """Watch the services until one that is needed dies, or we are interrupted."""
    with interrupt.noted() as told:
        while not told():
            cluster.check()
            time.sleep(CHECK_S)
    raise KeyboardInterrupt


@contextmanager
def ending_well_when_interrupted(code: int = 0) -> Iterator[None]:
    """Turn every way to end into an exit code: an error, and being told to stop.

    Args:
        code: Of Ctrl-C, SIGTERM and SIGHUP.
    """
    try:
        with commands.ending_well(_tell), interrupt.as_keyboard_interrupt():
            yield
    except KeyboardInterrupt:
        raise typer.Exit(code) from None


def _tell(message: str) -> None:
    """Print an error in the lines it has: of a service that died, its last ones."""
    typer.echo(visible(f"error: {message}", sys.stderr), err=True)
