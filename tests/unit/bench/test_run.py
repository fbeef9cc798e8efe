"""What cannot be measured is left out, and the rest of a run stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import run
from bench.deployment import options
from bench.in_turns import Passes
from bench.plan import Plan
from bench.run import delayed, described, lockstep
from common.errors import StartupError
from launcher.models import Models
from tests.unit.bench.samples import one_pass, sample
from tests.unit.bench.test_plan import settings

PAIR = Models(target=Path("target"), draft=Path("draft"))


def test_round_trips_without_an_address_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr("bench.round_trips.run", refused)
    asked, left_out = replace(settings(full=True), models=PAIR), ["before"]
    assert delayed(asked, options(asked), lambda _: None, lambda *_: None, left_out) is None
    assert left_out == ["before", "round trips: [Errno 99] Cannot assign requested address"]


def test_without_a_draft_model_there_are_no_round_trips() -> None:
    asked, left_out = settings(full=True), []
    assert delayed(asked, options(asked), lambda _: None, lambda *_: None, left_out) is None
    assert left_out == ["round trips: there is no draft model"]


def test_a_second_deployment_that_does_not_draft_is_no_lockstep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> None:
        raise StartupError("does not fit")

    made = nullcontext(SimpleNamespace(address="127.0.0.1:1"))
    monkeypatch.setattr(run, "Cluster", lambda **_: made)
    monkeypatch.setattr(run, "await_draft", refused)
    asked = settings(full=True)
    with ExitStack() as stack, pytest.raises(StartupError, match="does not fit"):
        lockstep(asked, options(asked), lambda _: None, stack)


@pytest.mark.parametrize("where", ["decoding", "stopping", "round trips"])
def test_what_is_whole_stays_wherever_somebody_ends_a_run(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    @contextmanager
    def started(**_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(address="127.0.0.1:1")
        if where == "stopping":
            raise KeyboardInterrupt

    def interrupted(*_: object) -> None:
        assert where == "round trips"
        raise KeyboardInterrupt

    plain = SimpleNamespace(name="plain")
    passes = {"plain": [one_pass(*[sample(8, 1.0, (1,))] * 4)]}
    measured = Passes(passes, [], interrupted=where == "decoding")
    monkeypatch.setattr(run, "Cluster", started)
    monkeypatch.setattr(run, "offered", lambda client: ("plain",))
    monkeypatch.setattr(run, "plan", lambda *_, **__: Plan([plain]))
    monkeypatch.setattr(run, "measure", lambda *_, **__: measured)
    monkeypatch.setattr("bench.prompts.encode", lambda *_: [])
    monkeypatch.setattr(run, "resident_bytes", lambda cluster: 1)
    monkeypatch.setattr("bench.round_trips.run", interrupted)
    monkeypatch.setattr(run, "await_draft", lambda *_: None)
    short = replace(settings(full=False), models=PAIR, round_trips_ms=(1.0,))
    asked = replace(short, per_domain=1, draft_quantize="none")
    report = run.run(asked, lambda: lambda _: None, lambda *_: None)
    assert report.interrupted
    assert report.left_out == ["round trips: interrupted"]
    assert [row.name for row in report.rows] == ["plain"]


def test_a_report_says_what_was_used() -> None:
    asked = replace(
        settings(full=False), models=Models(target=Path("a"), draft=Path("b")), unseen_prompts=True
    )
    workers = replace(options(asked), draft_quantize="int8")
    told = described(asked, workers)
    assert asked.draft_quantize == "auto"
    assert told["draft_quantize"] == "int8"
    assert told["unseen_prompts"] is True
