"""The commands' options, help and errors; what needs no fleet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fleet import deployments
from fleet.commands import fleet
from fleet.deployments import PoolName, Scaled
from fleet.gateway_client import FleetClient
from tests.unit.fleet.samples import load, snapshot, worker

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text(encoding="utf-8")
COMMANDS = ("status", "pairs", "drain", "scale", "plan", "doctor")


def run(*argv: str) -> Any:
    return CliRunner().invoke(fleet, list(argv), env={"COLUMNS": "120", "NO_COLOR": "1"})


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_json_an_option(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: paceline fleet {command}" in " ".join(result.output.split())
    assert "--json" in result.output


def test_the_example_of_a_plan_is_the_documented_one() -> None:
    """There it stands with what it prints: a fleet that gains by its drafters."""
    _, _, example = run("plan", "--help").output.partition("Example: paceline fleet plan ")
    _, _, documented = DOCUMENTED.partition("$ paceline fleet plan ")
    documented, _, _ = documented.partition("\ntarget ")
    assert example.split() == documented.replace("\\", "").split()


def test_all_commands_are_there() -> None:
    assert set(typer.main.get_command(fleet).commands) == set(COMMANDS)  # type: ignore[attr-defined]


PLAN = ("plan", "--verifiers", "H100", "--drafters", "T4, A10", "--requests-per-s", "2")


def test_a_plan_as_data() -> None:
    result = run(
        *(*PLAN, "--token-ms", "9", "--target-shape", "36,8,128", "--gpu", "T4=0.1", "--json"),
        *("--target-params", "7", "--target-total-params", "9"),
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["input"]["traffic"]["requests_per_s"] == 2.0
    assert told["input"]["target"]["layers"] == 36
    assert told["input"]["target"]["params_billion"] == 7
    assert told["input"]["target"]["total_params_billion"] == 9
    assert {option["drafter"] for option in told["options"]} <= {None, "T4", "A10"}
    costs = [option["cost_per_hour"] for option in told["options"]]
    assert costs == sorted(costs)
    assert told["simulation"] is None


def test_a_plan_with_its_simulation(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("traffic: {output_tokens: 16}\n")
    result = run(*PLAN, "--config", str(file), "--simulate")
    assert result.exit_code == 0, result.output
    assert "traffic 2 requests/s of 512 + 16 tokens" in result.output
    assert "planned" in result.output


def test_a_plan_without_drafters(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("drafters: [T4]\ngpu: [T4=0.1]\nmost: [H100=9]\n")
    argv = ("plan", "--config", str(file), "--drafters", "")
    told = json.loads(run(*argv, "--json").output)
    assert told["input"]["drafters"] == []
    assert (told["input"]["gpu"], told["input"]["most"]) == (["T4=0.1"], ["H100=9"])
    assert {option["drafter"] for option in told["options"]} == {None}
    assert "No drafters were considered" in run(*argv).output


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("--target-shape", "1,2"), 2, "target-shape: must be LAYERS,KV_HEADS,HEAD_SIZE"),
        (("--target-shape", "1,2,²"), 2, "target-shape: must be LAYERS,KV_HEADS,HEAD_SIZE"),
        (("--verifiers", "V100"), 2, "verifiers: must be of T4"),
        (("--gpu", "T4"), 2, "gpu: must be NAME=PRICE"),
        (("--acceptance", "2"), 2, "acceptance: must be in [0, 1]"),
        (("--requests-per-s", "inf"), 2, "requests-per-s: must be number, got 'inf'"),
        (("--output-tokens", "1"), 2, "output-tokens: must be in [2, 1e+06], got 1"),
        (("--draft-params", "0"), 2, "draft-params: must be from 1e-06 to 1e+12, got 0.0"),
        (("--target-shape", "0,8,128"), 2, "target-shape: must be from 1e-06 to 1e+12, got 0"),
        (("--verifiers", ""), 2, "verifiers: must name at least one GPU type"),
        (("--most", "T4"), 2, "most: must be NAME=COUNT as in T4=8, got 'T4'"),
        (("--token-ms", "0.01"), 1, "no fleet of these GPU types reaches"),
        (("--target-params", "1e9"), 1, "the target and one sequence of it do not fit"),
        (("--config", "/nowhere.yaml"), 1, "/nowhere.yaml: cannot be read"),
    ],
)
def test_what_is_wrong_with_a_plan(argv: tuple[str, ...], code: int, message: str) -> None:
    result = run("plan", *argv)
    assert result.exit_code == code
    assert f"error: {message}" in result.output


@pytest.mark.parametrize(
    "argv", [("drain", "v:1", "--grace", "86401"), ("status", "--interval", "1e12")]
)
def test_no_time_is_longer_than_a_day(argv: tuple[str, ...]) -> None:
    result = run(*argv)
    assert result.exit_code == 2
    assert "86400" in result.output


def test_what_is_wrong_with_a_file_is_told_as_it_stands_there(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("traffic: {output_tokens: 1}\n")
    result = run("plan", "--config", str(file), "--acceptance", "0.5")
    assert result.exit_code == 1
    assert "error: traffic.output_tokens: must be in [2, 1e+06], got 1" in result.output


@pytest.mark.parametrize("flag", ["--namespace", "-n"])
def test_a_pool_is_scaled_where_it_is_said_to_be(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere:
        """Stands for the Deployments of a cluster."""

        def __init__(self, kubeconfig: object, context: str, namespace: str) -> None:
            self._place = f"{context}/{namespace}"

        def __enter__(self) -> Elsewhere:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def scale(self, pool: PoolName, replicas: int, release: str) -> Scaled:
            return Scaled(
                namespace=self._place,
                deployment=f"{release}-{pool.name}",
                before=2,
                after=replicas,
            )

    monkeypatch.setattr(deployments, "Deployments", Elsewhere)
    places = ("--context", "east", flag, "serving", "--release", "r")
    result = run("scale", "drafter/t4", "6", *places)
    assert result.exit_code == 0, result.output
    assert "Deployment east/serving/r-t4 from 2 to 6 replicas" in result.output


def test_nothing_heavy_is_imported() -> None:
    heavy = ("torch", "transformers", "kubernetes", "numpy")
    check = f"import sys, fleet.commands; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("looks", "found"), [(2, True), (1, False)])
def test_a_doctor_who_looked_once_calls_no_queue_a_lasting_one(
    looks: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [snapshot(workers=(worker(load=load(waiting=3)),))] * looks
    monkeypatch.setattr(FleetClient, "look", lambda *_: seen)
    monkeypatch.setattr(FleetClient, "models", lambda _: [])
    told = json.loads(run("doctor", "--json").output)
    assert any("sequences wait" in each["what"] for each in told["findings"]) is found
