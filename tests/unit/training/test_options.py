"""What a progress bar shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from training.options import Bar


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
