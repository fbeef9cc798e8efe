"""Options that the commands of `paceline train` share, and what they show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from common import commands
from launcher.commandline import MOST_THREADS, Device

if TYPE_CHECKING:
    from training.folder import State

Target = Annotated[
    Path, typer.Option(exists=True, file_okay=False, help="Directory of the target model")
]
Corpus = Annotated[
    list[Path],
    typer.Option(
        "--corpus",
        exists=True,
        dir_okay=False,
        help="Training file, .jsonl or text; may be given again. "
        'Lines of .jsonl hold "text", "question" and "answer", or "messages"',
    ),
]
Out = Annotated[Path, typer.Option(file_okay=False, help="Folder of the run and its results")]
WrittenFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--written",
        exists=True,
        dir_okay=False,
        help="Text by the target, from `paceline train write`; may be given again",
    ),
]
WrittenShare = Annotated[
    float, typer.Option(min=0, max=1, help="Part of all blocks that the target wrote")
]
HeldOut = Annotated[
    list[Path],
    typer.Option(
        "--held-out",
        exists=True,
        dir_okay=False,
        help="File of documents that no training saw, one a domain and named for it; may be given "
        "again",
    ),
]
Prompts = Annotated[int, typer.Option(min=2, help="Held-out prompts of each domain")]
Steps = Annotated[int, typer.Option(min=1, help="Optimiser steps")]
Batch = Annotated[int, typer.Option(min=1, help="Blocks of a step")]
BlockTokens = Annotated[int, typer.Option(min=8, help="Tokens of a block")]
LearningRate = Annotated[float, typer.Option(min=0, max=1, help="Highest learning rate")]
EvaluateEvery = Annotated[
    int, typer.Option(min=1, help="Steps between evaluations, each followed by a checkpoint")
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides weights, order and samples")]
DeviceOption = Annotated[Device, typer.Option(help="Where to compute")]
Half = Annotated[bool, typer.Option("--bf16/--fp32", help="Number format of products")]
Threads = Annotated[
    int, typer.Option(min=0, max=MOST_THREADS, help="CPU threads; 0 leaves it to torch")
]

_PACE_S = 1800.0
"""The time left is told by the pace of so long: steps may take minutes, and evaluations, too."""


@contextmanager
def ending_well() -> Iterator[None]:
    """As other commands end; where memory runs out with a line about that, too."""
    from common.model.room import room_for

    with (
        commands.ending_well(),
        room_for("the run", "a smaller --batch, --block-tokens or model helps"),
    ):
        yield


class Bar:
    """A progress bar with a line of figures; plain lines where there is no terminal.

    Args:
        console: Where to draw.
        what: Stands before the bar.
    """

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what the others leave
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[line]}", markup=False, table_column=rest),
            console=console,
            speed_estimate_period=_PACE_S,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, line="", total=None)
        self._what, self._told = what, -1

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """Prints a line that stays, above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __call__(self, done: int, total: int, line: str = "") -> None:
        """Shows how far the work is."""
        if done < self._bar.tasks[0].completed:  # another stage
            self._bar.reset(self._task, total=total)
        self._bar.update(self._task, completed=done, total=total, line=line)
        percent = 100 * done // max(1, total)
        if not self._console.is_terminal and percent != self._told:
            self._told = percent
            self.say(f"{self._what} {done}/{total} {line}")


def place(device: Device) -> str:
    """The device's name for torch.

    Raises:
        ModelError: It is not there, or does not compute.
    """
    from common.model.loader import device_name

    return device_name(device)


def set_threads(threads: int) -> None:
    """Sets how many CPU threads torch uses; 0 changes nothing."""
    import torch

    if threads:
        torch.set_num_threads(threads)


def tell(where: Path, state: State) -> None:
    """Says which weights a run leaves, and where."""
    best = f"those of step {state.best_step}"
    if not state.best_step:
        best = "those that training started from: no step was better"
    if not state.best:
        best = "the last: no score was a number"
    figures = ", ".join(f"{name} {value:.3f}" for name, value in state.best.items())
    typer.echo(f"Written to {where}\nThe best weights are {best}\n{figures}")
