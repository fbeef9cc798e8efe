"""What a step with lookahead's window costs: the arithmetic, and a run on the real target."""

from __future__ import annotations

import pytest

from bench import window_cost
from bench.window_cost import Steps


def test_a_line_is_of_its_own_steps() -> None:
    steps = Steps()
    for rows, seconds, tokens in ((4, 0.004, 3), (2, 0.003, 1), (3, 0.008, 1)):
        steps.add(rows, seconds, tokens)
    assert steps.cells("with", of_steps=12, plain_s=0.002) == [
        "with",
        "25 %",
        "3.00",
        "4.00",
        "2.00",
        "1.67",
    ]


def test_kinds_add_up() -> None:
    alone, windowed = Steps(), Steps()
    alone.add(1, 0.002, 1)
    windowed.add(4, 0.004, 2)
    assert (alone + windowed).cells("all", of_steps=2, plain_s=0.003) == [
        "all",
        "100 %",
        "2.50",
        "3.00",
        "1.00",
        "1.50",
    ]


def test_a_window_that_never_ran_has_no_figures() -> None:
    assert Steps().cells("with", of_steps=12, plain_s=0.002)[1:] == ["0 %", "–", "–", "–", "–"]


def test_rows_are_those_of_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    window_cost.main(["--per-domain", "1", "--max-tokens", "32"])
    _, _, head, _, *lines = capsys.readouterr().out.splitlines()
    assert head == "| step | share of steps | rows | ms, median | × plain | tokens |"
    found = {cells[1]: cells[2:] for cells in ([c.strip() for c in x.split("|")] for x in lines)}
    assert found["plain"][:2] == ["100 %", "1.00"]
    assert found["plain"][3:5] == ["1.00", "1.00"]
    # A window is tried first of all; with 5-grams the narrowest has more nodes than one.
    share, rows, *_ = found["W 15, N 5, G 15: with the window"]
    assert share != "0 %"
    assert float(rows) > 2
