from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from bench import commands
from bench.commands import bench
from bench.report import Report
from bench.settings import PEERS

BENCH = Path(commands.__file__).parent
PROGRAMS = [
    path
    for path in (*sorted(BENCH.glob("*.py")), *sorted(BENCH.glob("contenders/*.py")))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]


def test_help_names_every_peer() -> None:
    command = typer.Typer(add_completion=False)
    command.command()(bench)
    told = CliRunner().invoke(command, ["--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert told.exit_code == 0
    assert set(PEERS) <= set(re.findall(r"[\w-]+", told.output))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_says_how_it_is_called(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    told = capsys.readouterr().out + str(ended.value.code)
    assert "usage: " in told.lower()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"methods": "plain,draft+foo"}, "--methods: must be of plain, .* got draft.foo"),
        ({"peers": "engine,sglang"}, "--peers: must be of engine, .* got sglang"),
        ({"concurrency": "8,0"}, "--concurrency: must be a whole number, at least 1, got 0"),
        ({"round_trips": "1,1001"}, r"--round-trips: must be in \[0, 1000\], got 1001"),
    ],
)
def test_what_a_list_may_not_have_is_said(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"^{problem}"):
        bench(**given)


@pytest.mark.parametrize("rounding", [{"quantize": "int8"}, {"draft_quantize": "int4"}])
def test_a_roofline_is_of_weights_as_they_are_stored(rounding: dict[str, Any]) -> None:
    with pytest.raises(typer.BadParameter, match="as they are stored"):
        bench(show_roofline=True, **rounding)


@pytest.fixture
def measured(report: Report, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stands for minutes of measuring; returns what was to be measured."""
    asked: list[object] = []

    def run(settings: object, console: object) -> Report:
        asked.append(settings)
        return report

    monkeypatch.setattr(commands, "measured", run)
    return asked


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(
    measured: list[object], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nope")):
        with pytest.raises(typer.BadParameter, match="--out: must be a folder that can be") as told:
            bench(out=out)
        assert f"got {out}: " in str(told.value)
    assert not measured


def test_what_was_measured_is_shown_and_saved(
    measured: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "results [a] :smile:"
    bench(out=out)
    assert len(measured) == 1
    (file,) = out.glob("bench-*.md")
    shown = capsys.readouterr().out
    assert "Ratios" in shown
    assert shown.splitlines()[-1] == f"Written to {file}"
    assert json.loads(file.with_suffix(".json").read_text())["prompts"] == 2


@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_saved_any_more_has_been_shown(
    measured: list[object],
    as_json: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(path: Path, text: str, encoding: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(typer.Exit) as ended:
        bench(out=tmp_path, as_json=as_json)
    assert ended.value.exit_code == 1
    told = capsys.readouterr()
    assert told.err == (
        f"error: --out: {tmp_path}: cannot be written to any more: No space left on device\n"
    )
    assert json.loads(told.out)["prompts"] == 2 if as_json else "Ratios" in told.out


def test_what_nobody_reads_is_saved_all_the_same(
    measured: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*given: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(commands, "show", gone)
    with pytest.raises(BrokenPipeError):
        bench(out=tmp_path)
    assert len(list(tmp_path.glob("bench-*.json"))) == 1
