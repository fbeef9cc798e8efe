"""What fails in a step takes nobody along who has no part in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from common import accelerator
from common.errors import (
    PacelineError,
)
from common.model.roll import Drawing
from common.model.runner import Runner
from common.model.segment import Segment
from tests.inprocess import Collected, Pair
from tests.unit.verifier.texts import broken, prompt_of
from verifier.choice import MethodChoice
from verifier.committer import Committer
from verifier.config import EngineConfig
from verifier.gates.gated import GatedProposer
from verifier.methods.draft import DraftProposer
from verifier.methods.ngram import NgramProposer
from verifier.methods.plain import PlainProposer
from verifier.sequence import FinishReason

pytestmark = pytest.mark.usefixtures("nothing_left")

FAILURES = {
    "commit": [(Committer, "commit"), (Committer, "commit_several")],
    "close": [(PlainProposer, "close")],
    "tell": [(Collected, "__call__")],
}


def test_one_failing_step_ends_its_requests_only(
    target: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair.make(target)
    doomed = pair.submit(prompt_of(10), 20)
    pair.engine.step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", broken)
        pair.engine.step()
    assert isinstance(doomed.events[-1].error, PacelineError)
    assert "boom" not in str(doomed.events[-1].error), "inner details stay inside"
    assert caplog.records[-1].__dict__["request"] == "test"
    assert len(pair.generate(prompt_of(10), 20)) == 20


def test_an_engine_whose_device_is_lost_goes_no_further(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever watches its thread has the process end."""
    pair = Pair.make(target)
    pair.submit(prompt_of(10), 20)
    with monkeypatch.context() as patch:
        patch.setattr(accelerator, "check", _lost)
        patch.setattr(target, "forward", broken)
        with pytest.raises(RuntimeError, match="illegal address"):
            pair.run()
    pair.run()


def _lost(device: torch.device) -> None:
    raise RuntimeError("illegal address")


def test_a_sequence_that_breaks_a_pass_does_not_take_others_along(target: Runner) -> None:
    pair = Pair.make(target)
    poison = 77
    forward = target.forward

    def picky(segments: list[Segment], drawings: Sequence[Drawing], **options: bool) -> object:
        if any(poison in segment.ids for segment in segments):
            raise RuntimeError("boom")
        return forward(segments, drawings, **options)

    expected = pair.generate(prompt_of(10, seed=3), 12, stop_ids=frozenset({poison}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", picky)
        well = pair.submit(prompt_of(10, seed=3), 12, stop_ids=frozenset({poison}))
        ill = pair.submit([poison, 5, 6], 12)
        pair.run()
    assert well.ids == expected
    assert isinstance(ill.events[-1].error, PacelineError)


def test_what_failed_is_let_go_before_texts_are_tried_alone(
    target: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    """Its traceback holds the memory of a pass for which there was too little."""
    pair = Pair.make(target)
    forward, handled = target.forward, []

    def failing_together(
        segments: list[Segment], drawings: Sequence[Drawing], **options: bool
    ) -> object:
        if len(segments) > 1:
            raise torch.OutOfMemoryError("boom")
        handled.append(sys.exception())
        return forward(segments, drawings, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", failing_together)
        patch.setattr(pair.engine, "_roll", lambda batch: 0)
        texts = [pair.submit(prompt_of(10, seed), 12) for seed in range(2)]
        pair.run()
    assert [len(text.ids) for text in texts] == [12, 12]
    assert handled == [None] * 24
    assert pair.engine.failures.counts["pass"] == 12
    assert len(caplog.records) == 1, "and not one for each step"


@pytest.mark.parametrize("interval_s", [0.0, 10.0])
@pytest.mark.parametrize("what", FAILURES)
def test_a_text_whose_part_of_a_step_fails_is_lost_alone(
    what: str, interval_s: float, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several passes are one call."""
    pair = Pair.make(target, interval_s=interval_s)
    prompts = [prompt_of(10, seed=seed) for seed in range(3)]
    expected = [pair.generate(prompt, 12) for prompt in prompts]
    heard = [pair.submit(prompt, 12) for prompt in prompts]
    pair.engine.step()
    ill = pair.engine._scheduler.running[1]
    victims = [ill, heard[1]]
    for owner, name in FAILURES[what]:
        monkeypatch.setattr(owner, name, _failing(getattr(owner, name), victims))
    assert pair.engine.totals.sequences == 3
    pair.run()
    assert (pair.engine.totals.sequences, pair.engine.totals.starting) == (0, 0)
    assert [heard[0].ids, heard[2].ids] == [expected[0], expected[2]]
    last = [[event for event in one.events if event.error or event.finish] for one in heard]
    assert [len(one) for one in last] == [1, what != "tell", 1]
    if what == "close":
        assert heard[1].ids == expected[1], "it was complete"
    elif what == "commit":
        assert isinstance(last[1][0].error, PacelineError)
    elif not interval_s:
        assert ill.output_len == 2, "nobody could be told of more"


def test_one_that_cannot_begin_is_told_so_and_leaves_its_place_to_the_next(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=1))
    doomed, well = [pair.submit(prompt_of(10), 5) for _ in range(2)]
    with monkeypatch.context() as patch:
        victims = [pair.engine._intake._inside[doomed.ticket].request]
        patch.setattr(MethodChoice, "choose", _failing(MethodChoice.choose, victims))
        assert pair.engine.step()
    assert isinstance(doomed.events[-1].error, PacelineError)
    assert well.events, "in the same step"
    pair.run()
    assert len(well.ids) == 5
    assert (pair.engine.live, pair.engine.totals.sequences) == (0, 0)


def test_one_cancelled_while_others_are_tried_alone_is_not_computed(
    target: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair.make(target)
    first, second = [pair.submit(prompt_of(20, seed), 12) for seed in range(2)]
    while not second.events:
        pair.engine.step()
    forward, events = target.forward, len(second.events)

    def failing_together(
        segments: list[Segment], drawings: Sequence[Drawing], **options: bool
    ) -> object:
        if len(segments) > 1:
            raise RuntimeError("boom")
        pair.engine.cancel(second.ticket)
        return forward(segments, drawings, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", failing_together)
        pair.engine.step()
    pair.run()
    assert len(first.ids) == 12
    assert len(second.events) == events
    (record,) = caplog.records
    assert record.__dict__["requests"] == ["test", "test"]


def test_a_hybrid_of_which_one_fails_to_begin_leaves_nothing(
    target: Runner, twin: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair.make(target, twin)
    assert pair.link is not None
    with monkeypatch.context() as patch:
        patch.setattr(NgramProposer, "open", broken)
        heard = pair.submit(prompt_of(10), 5, method="draft+ngram")
        assert pair.engine.step()
    assert pair.link.meter.sessions == 0
    assert pair.link.drafter.live == 0
    pair.run()
    counts = heard.events[-1].counts
    assert counts is not None
    assert counts.method == "plain", "which is what it is"
    assert pair.generate(prompt_of(10), 5, method="draft+ngram") == heard.ids


@pytest.mark.parametrize(
    ("owner", "what"),
    [
        (NgramProposer, "open"),
        (GatedProposer, "ready"),
        (GatedProposer, "rests"),
        (NgramProposer, "propose"),
        (NgramProposer, "observe"),
    ],
)
def test_a_method_that_fails_costs_no_text(
    owner: type,
    what: str,
    target: Runner,
    twin: Runner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever it is asked, beside others in a hybrid and alone."""
    asked: list[str] = []

    def fail(*_: object) -> None:
        asked.append(what)
        raise RuntimeError("boom")

    plain = Pair.make(target)
    expected = [plain.generate(prompt_of(10, seed=seed), 20) for seed in range(3)]
    pair = Pair.make(target, twin, interval_s=10.0)
    monkeypatch.setattr(owner, what, fail)
    methods = ("draft+ngram", "ngram", "plain")
    heard = [
        pair.submit(prompt_of(10, seed=seed), 20, method=method)
        for seed, method in enumerate(methods)
    ]
    pair.run()
    assert [one.ids for one in heard] == expected
    assert all(one.events[-1].finish is FinishReason.LENGTH for one in heard)
    assert pair.engine.totals.sequences == 0
    assert sum(pair.engine.failures.counts.values()) == len(asked)
    failed = [each.__dict__ for each in caplog.records if each.msg == "a proposer failed"]
    assert all(each["request"] == "test" and each["method"] in methods for each in failed)


def test_a_method_that_cannot_let_go_of_a_text_is_not_asked_for_it_any_more(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair.make(target)
    monkeypatch.setattr(NgramProposer, "close", broken)
    assert len(pair.generate(prompt_of(10), 5, method="ngram")) == 5
    gated = pair.engine.methods._asked["ngram"]
    assert isinstance(gated, GatedProposer)
    assert not gated._solos


@pytest.mark.parametrize("what", ["deadline", "flush"])
def test_what_drafters_fail_at_between_steps_costs_no_text(
    what: str, target: Runner, twin: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair.make(target, twin)
    expected = pair.generate(prompt_of(10), 20)
    monkeypatch.setattr(DraftProposer, what, broken)
    heard = pair.submit(prompt_of(10), 20)
    while pair.engine.live:
        pair.engine.wait(0.0)
        pair.engine.step()
    assert heard.ids == expected
    with monkeypatch.context() as patch:
        patch.setattr(target, "forward", broken)
        ill = pair.submit(prompt_of(10), 20)
        pair.run()
    assert isinstance(ill.events[-1].error, PacelineError)


def _failing(method: Callable[..., Any], victims: list[Any]) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        if any(each is victim for each in args for victim in victims):
            raise RuntimeError("boom")
        return method(*args)

    return wrapped


def test_a_failing_note_is_logged_and_forgotten(target: Runner) -> None:
    pair = Pair.make(target)
    pair.engine.post(lambda: broken(None))
    assert len(pair.generate(prompt_of(10), 5)) == 5
