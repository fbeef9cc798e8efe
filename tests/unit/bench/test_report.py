from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import plots, summary
from bench.confidence import Estimate
from bench.report import Ratio, Report
from bench.round_trips import RoundTrip, RoundTrips
from bench.tables import markdown, tables
from tests.unit.bench.samples import one_pass, sample


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value)


@pytest.fixture
def report() -> Report:
    plain = [one_pass(sample(100, 1.0, (1, 2)), sample(100, 1.0, (3,)))] * 2
    draft = [one_pass(sample(100, 0.5, (1, 2)), sample(100, 0.5, (4,)))] * 2
    domains = {"dialogue": [0], "story": [1]}
    trips = [
        RoundTrip(
            round_trip_ms=delay_ms,
            measured=estimate(rate),
            predicted=1.1 * rate,
            kept=estimate(rate / 200),
        )
        for delay_ms, rate in ((0.0, 200.0), (5.0, 150.0))
    ]
    return Report(
        settings={"threads": 1},
        prompts=2,
        rows=[
            summary.row("plain", plain, plain, domains),
            summary.row("draft", draft, plain, domains),
        ],
        loads=[summary.load("plain", count, plain, plain) for count in (1, 8)],
        round_trips=RoundTrips(
            plain=estimate(100.0),
            half_step_ms=5.0,
            drafter_token_ms=0.8,
            drafter_way_ms=0.4,
            hits={"4": 0.5},
            besides_ms={"4": 0.2},
            rows=trips,
        ),
        ratios=[Ratio(name="draft / plain", value=estimate(2.0), wanted=2.5)],
        left_out=["medusa: this deployment does not offer medusa"],
        gateway_rss_bytes=100 << 20,
    )


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
