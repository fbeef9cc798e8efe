from __future__ import annotations

import io

from rich.console import Console

from bench.progress import LINES, shown


def test_where_there_is_no_terminal_a_line_says_what_is_next() -> None:
    written = io.StringIO()
    with shown(Console(file=written)) as progress:
        progress("warm-up: plain", 0, 2)
        progress("1/1: plain", 1, 2)
    assert written.getvalue().splitlines() == ["[0/2] warm-up: plain", "[1/2] 1/1: plain"]


def test_work_that_is_called_the_same_takes_few_lines() -> None:
    written = io.StringIO()
    with shown(Console(file=written)) as progress:
        for done in range(1000):
            progress("generating", done, 1000)
    lines = written.getvalue().splitlines()
    assert len(lines) == LINES
    assert lines[-1] == "[900/1000] generating"


def test_nothing_is_said_where_nobody_looks() -> None:
    written = io.StringIO()
    with shown(Console(file=written, quiet=True)) as progress:
        progress("warm-up: plain", 0, 2)
    assert not written.getvalue()
