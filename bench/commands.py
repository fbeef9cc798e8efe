"""The command `paceline bench`, loaded by the SDK's command line."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from bench import plots, roofline
from bench.arguments import at_least, known_method, known_peer, several, within
from bench.deployment import options
from bench.progress import shown
from bench.report import Report
from bench.run import run
from bench.settings import FULL, PEERS, SHORT, Settings
from bench.tables import markdown, notes, tables
from common.commands import INTERRUPTED
from common.errors import StartupError
from launcher import models
from launcher.commands import (
    DeviceOption,
    Draft,
    DraftQuantizeOption,
    DTypeOption,
    Eagle,
    Medusa,
    QuantizeOption,
    Target,
    Threads,
    ending_well_when_interrupted,
)
from launcher.display import Display

T = TypeVar("T")

RESULTS = Path("bench/results")
WIDE = 140
"""Columns of the tables where no terminal says how many there are."""


def listed(
    option: str, read: Callable[[str], T], text: str | None, default: tuple[T, ...]
) -> tuple[T, ...]:
    """Read what an option lists with commas, where it was given."""
    try:
        return default if text is None else several(read)(text)
    except ArgumentTypeError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def make_writable(folder: Path) -> None:
    """Make the folder of --out, and refuse one where nothing can be saved."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"--out: must be a folder that can be written to, got {folder}: {error.strerror}"
        ) from None


def bench(
    target: Target = None,
    draft: Draft = None,
    medusa: Medusa = None,
    eagle: Eagle = None,
    dtype: DTypeOption = "auto",
    quantize: QuantizeOption = "none",
    draft_quantize: DraftQuantizeOption = "auto",
    device: DeviceOption = "auto",
    threads: Threads = 0,
    full: Annotated[
        bool, typer.Option("--full", help="Every method, peer, concurrency and round trip")
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods with commas, hybrids as draft+ngram (default: by profile)"),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(help=f"With commas, of {', '.join(PEERS)} (default: by profile)"),
    ] = None,
    llama_server: Annotated[
        str, typer.Option(help="llama.cpp's server, for the peers llama and llama-draft")
    ] = "llama-server",
    vllm: Annotated[
        str,
        typer.Option(
            help="vLLM's program in its own environment, for the peers vllm, vllm-draft, vllm-ngram"
        ),
    ] = "vllm",
    concurrency: Annotated[
        str | None,
        typer.Option(help="Prompts at once, with commas; empty for none (default: by profile)"),
    ] = None,
    round_trips: Annotated[
        str | None,
        typer.Option(
            help="Round trips to add before the drafter, ms with commas (default: by profile)"
        ),
    ] = None,
    unseen_prompts: Annotated[
        bool,
        typer.Option(
            "--unseen-prompts",
            help="Several at once get prompts that nobody has asked yet, so that prefill counts",
        ),
    ] = False,
    repetitions: Annotated[int, typer.Option(min=1, help="Passes over the prompts")] = 5,
    max_tokens: Annotated[
        int, typer.Option(min=2, help="Tokens for each prompt; of few most come in one message")
    ] = 64,
    temperature: Annotated[
        float,
        typer.Option(min=0, max=2, help="Of all texts; above 0 with the same seeds for all"),
    ] = 0.0,
    per_domain: Annotated[int, typer.Option(min=0, help="Prompts of each domain; 0 takes all")] = 0,
    show_roofline: Annotated[
        bool, typer.Option("--roofline", help="Only compare steps with what memory allows")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for JSON, Markdown and plots")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON only")] = False,
) -> None:
    """Measure every way to decode on this machine, in turns: tables, JSON and plots.

    Ctrl-C ends it with the repetitions that are whole.
    """
    # Names of folders and models may look like markup.
    console = Console(quiet=as_json, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDE
    whole = quantize == "none" and draft_quantize in ("auto", "none")
    if show_roofline and not whole:
        raise typer.BadParameter("--roofline is of weights as they are stored, not of rounded ones")
    profile = FULL if full else SHORT
    with ending_well_when_interrupted(INTERRUPTED):
        settings = Settings(
            models=models.choose(target, draft, medusa, eagle),
            dtype=dtype,
            quantize=quantize,
            draft_quantize=draft_quantize,
            device=device,
            threads=threads,
            repetitions=repetitions,
            max_tokens=max_tokens,
            temperature=temperature,
            per_domain=per_domain,
            methods=listed("--methods", known_method, methods, profile.methods),
            peers=listed("--peers", known_peer, peers, profile.peers),
            llama_server=llama_server,
            vllm=vllm,
            concurrency=listed("--concurrency", at_least(1), concurrency, profile.concurrency),
            concurrent_methods=profile.concurrent_methods if methods is None else (),
            unseen_prompts=unseen_prompts,
            round_trips_ms=listed(
                "--round-trips", within(0, 1000), round_trips, profile.round_trips_ms
            ),
            full=full,
        )
        if show_roofline:
            compare_with_roofline(settings, console, as_json)
            return
        make_writable(out)
        report = measured(settings, console)
        try:  # first on the screen: a disk may be full by now
            show(report, console, as_json)
        finally:  # a reader may be gone by now
            written = save(report, out)
    console.print(f"Written to {written}", highlight=False, soft_wrap=True)
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)


def measured(settings: Settings, console: Console) -> Report:
    """Run the bench with a progress bar, or a line for each pass where there is no terminal."""
    with shown(console) as progress:
        return run(settings, lambda: Display(console, live=False).update, progress)


def compare_with_roofline(settings: Settings, console: Console, as_json: bool) -> None:
    """Show how near the models' steps come to what memory allows."""
    threads = options(settings).own_threads
    found = [
        roofline.measure(str(model), settings.dtype, threads, settings.device)
        for model in (settings.models.target, settings.models.draft)
        if model
    ]
    if as_json:
        print(roofline.to_json(found))
        return
    for one in found:
        console.print(one.cells().drawn())
        console.print(one.about(), highlight=False, soft_wrap=True)


def show(report: Report, console: Console, as_json: bool) -> None:
    """Print the report's tables, or its line of JSON."""
    if as_json:
        print(report.to_json(), flush=True)
        return
    for cells in tables(report):
        console.print(cells.drawn())
    console.print(*notes(report), sep="\n", highlight=False, soft_wrap=True)


def save(report: Report, folder: Path) -> Path:
    """Write the report as JSON, Markdown and plots; return the Markdown's path.

    Raises:
        StartupError: The folder cannot be written to any more; says why.
    """
    try:
        return _written(report, folder)
    except OSError as error:
        raise StartupError(
            f"--out: {folder}: cannot be written to any more: {error.strerror or error}"
        ) from error


def _written(report: Report, folder: Path) -> Path:
    stem = folder / datetime.now(UTC).strftime("bench-%Y%m%d-%H%M%S")
    stem.with_suffix(".json").write_text(report.to_json() + "\n", encoding="utf-8")
    text = markdown(report)
    if plots.available():
        text += "".join(f"\n![{path.stem}]({path.name})\n" for path in plots.draw(report, stem))
    else:
        print("no plots: they need matplotlib", file=sys.stderr)
    path = stem.with_suffix(".md")
    path.write_text(text, encoding="utf-8")
    return path
