"""The command `paceline bench`, loaded by the SDK's command line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from bench.measure import Settings, run
from bench.report import Report
from launcher import models
from launcher.commands import Draft, DType, DTypeOption, Target, Threads, ending_well
from launcher.display import Display

RESULTS = Path("bench/results")


def bench(
    target: Target = None,
    draft: Draft = None,
    dtype: DTypeOption = DType.AUTO,
    threads: Threads = 0,
    repetitions: Annotated[int, typer.Option(min=1, help="Passes over the prompts")] = 3,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens for each prompt")] = 96,
    out: Annotated[Path, typer.Option(help="Folder for the JSON and Markdown results")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON only")] = False,
) -> None:
    """Measure plain, draft, the engine in process and transformers, in turns, on CPU."""
    console = Console(quiet=as_json)
    with ending_well(interrupted=130):
        target, draft = models.choose_pair(target, draft)
        settings = Settings(
            target=target,
            draft=draft,
            dtype=dtype.value,
            threads=threads,
            repetitions=repetitions,
            max_tokens=max_tokens,
        )
        report = measured(settings, console)
    written = save(report, out)
    if as_json:
        print(report.to_json())
        return
    console.print(*report.tables(), sep="\n")
    console.print(f"Gateway: {report.gateway_rss_bytes / 2**20:.0f} MiB resident.")
    console.print(f"Written to {written}", highlight=False, soft_wrap=True)


def measured(settings: Settings, console: Console) -> Report:
    """Run the bench with a progress bar."""
    lines = Display(console, live=False)
    with Progress(console=console, disable=console.quiet) as bar:
        task = bar.add_task("starting")

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)
            if not console.is_terminal:
                console.print(f"[{done}/{total}] {what}", markup=False, highlight=False)

        report = run(settings, lines.update, progress)
        bar.update(task, description="done", completed=1, total=1)
    return report


def save(report: Report, folder: Path) -> Path:
    """Write the report as JSON and Markdown; return the latter's path."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / datetime.now(UTC).strftime("bench-%Y%m%d-%H%M%S")
    stem.with_suffix(".json").write_text(report.to_json() + "\n", encoding="utf-8")
    markdown = stem.with_suffix(".md")
    markdown.write_text(report.to_markdown(), encoding="utf-8")
    return markdown
