"""What a progress bar shows, how commands end, and which numbers they take."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from training.commands import train
from training.options import Bar, ending_well


@pytest.mark.parametrize("total", [20, 40])
def test_a_second_stage_begins_a_bar_anew(total: int) -> None:
    bar = Bar(Console(file=io.StringIO(), force_terminal=True), "medusa")
    (task,) = bar._bar.tasks
    for done in range(1, 21):
        bar(done, 20)
    assert task.finished
    for done in range(1, 6):
        bar(done, total)
    assert (task.completed, task.total, task.finished) == (5, total, False)


def test_a_bar_without_a_terminal_tells_of_both_stages() -> None:
    out = io.StringIO()
    bar = Bar(Console(file=out), "medusa")
    for _ in range(2):
        for done in (1, 2):
            bar(done, 2, "loss 1")
    assert out.getvalue().splitlines() == ["medusa 1/2 loss 1", "medusa 2/2 loss 1"] * 2


def test_the_time_left_is_told_of_steps_that_take_minutes() -> None:
    bar, now = Bar(Console(file=io.StringIO(), force_terminal=True), "write"), 0.0
    bar._bar.get_time = lambda: now
    for done in (64, 128, 192):
        now += 90
        bar(done, 640)
    (task,) = bar._bar.tasks
    assert task.time_remaining == 7 * 90


def test_long_figures_leave_the_count_and_the_time_in_sight() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bar = Bar(console, "medusa")
    bar(3, 1200, "loss 6.520 tokens [/story] 1.113 " + "top-1 head 0 0.008 " * 9)
    with console.capture() as shown:
        console.print(bar._bar.get_renderable())
    (line,) = shown.get().splitlines()
    assert line.startswith("medusa ")
    assert "3/1200 -:--:-- loss 6.520 tokens [/story]" in line


def test_memory_that_runs_out_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, ending_well():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == (
        "error: no room for the run: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "(a smaller --batch, --block-tokens or model helps)\n"
    )


@pytest.mark.parametrize("option", ["--threads=100000", "--learning-rate=inf"])
def test_numbers_that_help_nobody_are_wrong_usage(option: str, stories: Path) -> None:
    given = ["pretrain", "--corpus", str(stories), "--out", "never-made", option]
    assert CliRunner().invoke(train, given).exit_code == 2
    assert not Path("never-made").exists()
