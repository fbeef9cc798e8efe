"""What telemetry costs is told without a sign that could be misread, and its parts are timed."""

from __future__ import annotations

import urllib.error
from contextlib import nullcontext

import pytest

from bench import telemetry
from bench.in_turns import Passes
from bench.measurement import Pass, Sample
from bench.ports import free_ports
from bench.telemetry import Scraped, cost, variants


def passes(seconds: float) -> list[Pass]:
    return [Pass.of([Sample(ids=(), tokens=100, seconds=seconds)] * 3) for _ in range(2)]


def test_slower_with_telemetry_is_a_cost(capsys: pytest.CaptureFixture[str]) -> None:
    (plain, *_) = variants(None, 0)  # type: ignore[arg-type]
    summed = cost(plain, on=passes(1.01), off=passes(1.0))
    assert summed.off.value == pytest.approx(100)
    assert "costs +0.99 %" in summed.line()
    assert "costs -1.01 %" in cost(plain, on=passes(1.0), off=passes(1.0101)).line()


def test_scrapes_go_on_while_a_pass_runs_and_no_longer() -> None:
    class Waiting:
        name = "waiting"

        def measure(self, prompts: object, max_tokens: int) -> Pass:
            return passes(1.0)[0]

    (port,) = free_ports(1)
    scraped = Scraped(Waiting(), [])
    assert scraped.name == "waiting, told"
    assert scraped.measure([], 1).tokens == 300
    with pytest.raises(urllib.error.URLError):
        Scraped(Waiting(), [port])._read()


def test_what_is_whole_is_told_where_somebody_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {name: passes(1.0) for name in ("plain", "plain, told")}
    monkeypatch.setattr(telemetry, "deployments", lambda *_: nullcontext((0, 0, ())))
    monkeypatch.setattr("bench.prompts.encode", lambda *_: [])
    monkeypatch.setattr(telemetry, "measure", lambda *_, **__: Passes(found, ["all but 2"], True))
    with pytest.raises(KeyboardInterrupt):
        telemetry.main([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("plain ")
    assert "medians of 2 repetitions in turns, 50 % intervals" in lines[2]


def test_its_parts_are_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.telemetry_parts.REPETITIONS", 1)
    monkeypatch.setattr("bench.telemetry_parts.FEW", 5)
    monkeypatch.setattr("bench.telemetry_parts.MANY", 5)
    telemetry.main(["--parts"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.endswith(" us") for line in lines)
