from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import plots
from bench.report import Report
from bench.tables import markdown, tables


def test_markdown_has_every_table(report: Report) -> None:
    text = markdown(report)
    assert "| draft | 200 [200–200] | 200 | 200 | – | – | 1/2 |" in text
    assert "| draft | 2.00 [2.00–2.00] | 2.00 [2.00–2.00] | 2.00 [2.00–2.00] |" in text
    assert "| method | 1 | 8 |" in text
    assert "| 5 | 150 [135–165] | 165 | +10 % | 0.75 [0.68–0.83] |" in text
    assert "| draft / plain | 2.00 [1.80–2.20] | ≥ 2.50 | no |" in text
    assert "Left out: medusa" in text
    assert "100 MiB" in text


def test_other_roundings_are_said_to_write_other_texts(report: Report) -> None:
    assert "llama.cpp rounds" not in markdown(report)
    report.settings["quantize"] = "int8"
    assert "llama.cpp rounds" in markdown(report)


def test_json_has_every_figure(report: Report) -> None:
    line = report.to_json()
    assert "\n" not in line
    found = json.loads(line)
    assert found["rows"][1]["speedup_by_domain"]["story"]["value"] == pytest.approx(2.0)
    assert found["loads"][1]["concurrency"] == 8
    assert found["round_trips"]["rows"][1]["predicted"] == pytest.approx(165.0)
    assert found["ratios"][0]["wanted"] == 2.5


def test_the_screen_shows_the_same_tables(report: Report) -> None:
    console = Console(width=200, record=True, quiet=False, file=None)
    with console.capture() as shown:
        for cells in tables(report):
            console.print(cells.drawn())
    assert all(cells.title in shown.get() for cells in tables(report))


def test_plots_are_drawn_of_what_there_is(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = plots.draw(report, tmp_path / "bench")
    assert [path.name for path in written] == [
        "bench-speedup.png",
        "bench-concurrency.png",
        "bench-round-trip.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
