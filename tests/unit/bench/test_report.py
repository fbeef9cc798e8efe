from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench import plots, waits
from bench.confidence import Estimate
from bench.report import Report
from bench.settings import CROWD_PEERS, HYBRIDS, METHODS, PEERS
from bench.tables import markdown, notes, spread, tables


def test_markdown_has_every_table(report: Report) -> None:
    text = markdown(report)
    assert "| draft | 200 [200–200] | 200 | 200 | – | – | 1/2 |" in text
    assert "| draft | 2.00 [2.00–2.00] | 2.00 [2.00–2.00] | 2.00 [2.00–2.00] |" in text
    assert "| method | 1 | 8 |" in text
    assert "| 0 | 200 [180–220] | – | – | 1.00 [0.90–1.10] |" in text
    assert "| 5 | 150 [135–165] | 165 | +10 % | 0.75 [0.68–0.83] |" in text
    assert "| draft / plain | 2.00 [1.80–2.20] | ≥ 2.50 | no |" in text
    assert "Left out: medusa" in text
    assert "100 MiB" in text


@pytest.mark.parametrize(
    ("wanted", "met"), [(1.7, "yes"), (1.9, "likely"), (2.1, "doubtful"), (2.3, "no")]
)
def test_what_lies_within_the_confidence_is_not_said_for_sure(
    wanted: float, met: str, report: Report
) -> None:
    said = replace(report, ratios=[replace(report.ratios[0], wanted=wanted)])
    assert f"| draft / plain | 2.00 [1.80–2.20] | ≥ {wanted:.2f} | {met} |" in markdown(said)
    assert ("more repetitions tell" in notes(said)[0]) == (met in {"likely", "doubtful"})
    once = replace(said.ratios[0], value=Estimate(value=2.0, low=None, high=None))
    assert once.met == ("yes" if wanted < 2 else "no")


def test_figures_of_one_repetition_have_no_brackets(report: Report) -> None:
    sure = Estimate(value=2.0, low=None, high=None)
    assert spread(sure) == "2.00"
    assert "range of the 2 repetitions, which is 50 % confidence" in notes(report)[0]
    rows = [replace(row, speedup=sure, repetitions=row.repetitions[:1]) for row in report.rows]
    assert notes(replace(report, rows=rows))[0].startswith("No brackets: ")
    assert "50 % confidence" in notes(replace(report, loads=[]))[0], "prompts may hardly differ"
    enough = [replace(row, repetitions=[1.0] * 6) for row in report.rows]
    assert "range" not in notes(replace(report, rows=enough))[0]


def test_what_several_at_once_had_cached_is_said(report: Report) -> None:
    shares = (("plain", 0.9), ("plain", 0.92), ("transformers", None))
    loads = [
        replace(report.loads[0], method=method, cached_share=share) for method, share in shares
    ]
    seen = notes(replace(report, loads=loads))[1]
    assert "had been asked before" in seen
    assert "cached: plain 0.90 to 0.92." in seen
    assert "other than plain's" not in seen
    assert "Of transformers" in seen
    report.settings["unseen_prompts"] = True
    unseen = notes(report)[1]
    assert "prefill counts" in unseen
    assert "cached" not in unseen, "nobody counted"


def test_texts_that_are_others_among_several_are_said(report: Report) -> None:
    loads = [replace(load, same_ids=1) for load in report.loads]
    told = notes(replace(report, loads=loads))[1]
    assert "Texts other than plain's, of 2: plain 1 with 1, plain 1 with 8." in told


def test_a_draft_model_that_others_round_otherwise_or_not_is_said(report: Report) -> None:
    report.settings["draft_quantize"] = "int8"
    names = ("transformers, assisted", "vLLM, draft model", "llama.cpp, draft model")
    rows = [*report.rows, *(replace(report.rows[0], name=name) for name in names)]
    text = markdown(replace(report, rows=rows))
    assert "transformers, assisted and vLLM, draft model cannot" in text
    assert "llama.cpp, draft model: its draft model is rounded" in text
    assert "cannot" not in markdown(report)
    report.settings["draft_quantize"] = "none"
    assert "its draft model is rounded" not in markdown(replace(report, rows=rows))


def test_a_type_that_is_slow_for_transformers_alone_is_said(report: Report) -> None:
    said = "--dtype float32 compares it more fairly"
    report.settings["bfloat16_products"] = False
    assert said not in markdown(report)
    compared = replace(report, rows=[*report.rows, replace(report.rows[0], name="transformers")])
    assert said in markdown(compared)
    for name, value in {"bfloat16_products": True, "dtype": "float32"}.items():
        settings = report.settings | {name: value}
        assert said not in markdown(replace(compared, settings=settings))


def test_drawn_texts_are_said_to_be_others(report: Report) -> None:
    assert "noise" not in markdown(report)
    report.settings["temperature"] = 0.8
    assert "transformers, llama.cpp and vLLM draw with noise of their own" in markdown(report)


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
    assert found["loads"][1]["cached_share"] is None
    assert found["round_trips"]["rows"][0]["predicted"] is None
    assert found["round_trips"]["rows"][1]["predicted"] == pytest.approx(165.0)
    assert found["ratios"][0]["wanted"] == 2.5


def test_the_screen_shows_the_same_tables(report: Report) -> None:
    console = Console(width=200, record=True, quiet=False, file=None)
    with console.capture() as shown:
        for cells in tables(report):
            console.print(cells.drawn())
    words = " ".join(shown.get().split())  # a table that is narrow has its title in several lines
    assert all(cells.title in words for cells in tables(report))


def test_a_narrow_screen_cuts_nothing_off(report: Report) -> None:
    console = Console(width=60)
    with console.capture() as shown:
        for cells in tables(report):
            console.print(cells.drawn())
    assert "…" not in shown.get()
    assert shown.get().count("[2.00–2.00]") == 3, "where there is room an interval stays whole"


def test_plots_are_drawn_of_what_there_is(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = plots.draw(report, tmp_path / "bench")
    assert [path.name for path in written] == [
        "bench-speedup.png",
        "bench-concurrency.png",
        "bench-round-trip.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_waits_are_drawn_by_rate(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = waits.Run([waits.Wait(first_s=0.1, whole_s=0.4, tokens=3)], span_s=1.0)
    ways = [(rate, method) for rate in (1, 2) for method in ("plain", "draft")]
    plots.draw_waits([waits.summed(*way, run) for way in ways], tmp_path / "waits.svg")
    assert (tmp_path / "waits.svg").read_text("utf-8").startswith("<?xml")


def test_plots_are_drawn_of_one_repetition(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert report.round_trips
    for one in (*report.loads, *report.rows):
        object.__setattr__(one, "tokens_per_s", Estimate(value=1.0, low=None, high=None))
    trips = replace(report.round_trips, rows=report.round_trips.rows[:1])
    assert len(plots.draw(replace(report, round_trips=trips), tmp_path / "bench")) == 3


def test_no_two_lines_of_a_plot_look_alike(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure
    drawn = []
    monkeypatch.setattr(figure, "savefig", lambda self, path, **_: drawn.append(self))
    names = (*METHODS, *HYBRIDS, *(PEERS[key] for key in CROWD_PEERS))
    loads = [replace(load, method=name) for name in names for load in report.loads]
    plots.draw(replace(report, loads=loads), Path("bench"))
    (axes,) = drawn[1].axes
    assert len({line.get_color() for line in axes.lines}) == len(names)
