"""How a run says what it is doing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as rich_progress
from rich.console import Console

Progress = Callable[[str, int, int], None]
"""Told what is next, how many passes are done, and how many there will be."""

LINES = 10
"""Lines for work that is called the same all the time, where there is no terminal."""


@contextmanager
def shown(console: Console) -> Iterator[Progress]:
    """Show a bar at a terminal, and lines anywhere else; yields what is to be told."""
    columns = (*rich_progress.Progress.get_default_columns(), rich_progress.TimeElapsedColumn())
    bar = rich_progress.Progress(*columns, console=console)
    bar.disable = console.quiet or not console.is_terminal
    said: tuple[str, int] | None = None
    with bar:
        task = bar.add_task("starting")

        def progress(what: str, done: int, total: int) -> None:
            nonlocal said
            bar.update(task, description=what, completed=done, total=total)
            now = what, LINES * done // total
            if not console.is_terminal and now != said:
                console.print(f"[{done}/{total}] {what}", markup=False, highlight=False)
            said = now

        yield progress
        bar.update(task, description="done", completed=1, total=1)
