"""What a drafter chose for itself is read from its log, once for a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from bench.deployment import LOADED, ROUNDING, as_started
from common.errors import StartupError
from drafter import rounding
from drafter.rounding import load_drafter
from launcher.cluster import Cluster
from launcher.commandline import WorkerOptions


def deployment(log: Path | None) -> Cluster:
    """One whose drafter has this log, or that has no drafter."""
    verifier = SimpleNamespace(name="verifier", process=None)
    drafter = SimpleNamespace(name="drafter", process=SimpleNamespace(log=log))
    return cast(Cluster, SimpleNamespace(services=[verifier, *([drafter] if log else [])]))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([{"event": ROUNDING, "int8": True, "time": 0.6}], "int8"),
        ([{"event": ROUNDING, "int8": False, "time": 0.9}], "none"),
        ([{"event": "this drafter is not rounded", "reason": "experts"}], "none"),
        ([], "none"),
    ],
)
def test_the_drafter_says_what_it_chose(
    said: list[dict[str, object]], found: str, tmp_path: Path
) -> None:
    log = tmp_path / "drafter.log"
    workers = WorkerOptions(threads=3)
    log.write_text("", "utf-8")
    with pytest.raises(StartupError, match="does not say"):
        as_started(workers, deployment(log))
    others = [{"event": LOADED, "kernels": "native3-avx2-int8"}, *said]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in others) + "no message\n", "utf-8")
    assert as_started(workers, deployment(log)) == WorkerOptions(threads=3, draft_quantize=found)


def test_without_a_drafter_nothing_is_rounded() -> None:
    assert as_started(WorkerOptions(), deployment(None)).draft_quantize == "none"


@pytest.mark.parametrize("asked", ["none", "int8", "int4"])
def test_what_was_asked_for_is_what_it_is(asked: str) -> None:
    workers = WorkerOptions(draft_quantize=asked)
    assert as_started(workers, deployment(Path("/nowhere"))) is workers


@pytest.mark.parametrize("pays", [True, False])
def test_a_drafter_calls_it_so(
    pays: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, rounding.__name__)
    model = SimpleNamespace(device=torch.device("cpu"), unroundable="", compiled=True)
    monkeypatch.setattr(rounding, "load", lambda path, **_: model)
    monkeypatch.setattr(rounding, "compare", lambda exact, other: (1.0, 0.5 if pays else 1.0))
    load_drafter("", quantize="auto")
    (told,) = [record for record in caplog.records if record.getMessage() == ROUNDING]
    assert vars(told)["int8"] is pays
