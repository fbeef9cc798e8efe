"""What cannot be measured is left out, and the rest of a run stays."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import run
from bench.deployment import options
from bench.run import delayed, described, lockstep
from common.errors import StartupError
from launcher.models import Models
from tests.unit.bench.test_plan import settings


def test_round_trips_without_an_address_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr("bench.round_trips.run", refused)
    asked, left_out = settings(full=True), ["before"]
    assert delayed(asked, options(asked), lambda _: None, lambda *_: None, left_out) is None
    assert left_out == ["before", "round trips: [Errno 99] Cannot assign requested address"]


def test_a_second_deployment_that_does_not_draft_is_no_lockstep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = nullcontext(SimpleNamespace(address="127.0.0.1:1"))
    monkeypatch.setattr(run, "Cluster", lambda **_: made)
    monkeypatch.setattr(run, "await_draft", lambda client: False)
    asked = settings(full=True)
    with ExitStack() as stack, pytest.raises(StartupError, match="does not draft"):
        lockstep(asked, options(asked), lambda _: None, stack)


def test_a_report_says_what_was_used() -> None:
    asked = replace(
        settings(full=False), models=Models(target=Path("a"), draft=Path("b")), unseen_prompts=True
    )
    workers = replace(options(asked), draft_quantize="int8")
    told = described(asked, workers)
    assert asked.draft_quantize == "auto"
    assert told["draft_quantize"] == "int8"
    assert told["unseen_prompts"] is True
