"""Several passes in one call: the same texts, in fewer calls, and nobody waits for long."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common import accelerator
from common.model.roll import Rolled
from common.model.runner import Runner
from tests.inprocess import Pair, eagle_of, heads, runner
from tests.unit.verifier.rolled_texts import SELDOM_S, WAYS, rolling_runner, texts
from verifier.config import EngineConfig
from verifier.cost import StepCost
from verifier.gates.gate import Gate
from verifier.mailbox import beat_s
from verifier.rolling import Rolling
from verifier.sequence import Source

pytestmark = pytest.mark.usefixtures("nothing_left")

Calls = Counter[str]


@pytest.fixture(scope="module")
def target(directory: Path) -> Runner:
    return rolling_runner(directory)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """How many passes stood alone, and how many calls had several."""
    count: Calls = Counter()
    forward, roll = Runner.forward, Runner.roll

    def one(runner: Runner, *args: Any, **options: Any) -> Any:
        count["one"] += 1
        return forward(runner, *args, **options)

    def several(runner: Runner, *args: Any, **options: Any) -> Rolled:
        count["several"] += 1
        return roll(runner, *args, **options)

    monkeypatch.setattr(Runner, "forward", one)
    monkeypatch.setattr(Runner, "roll", several)
    return count


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_texts_are_the_same(seed: int, target: Runner) -> None:
    assert texts(Pair.make(target, interval_s=SELDOM_S), seed) == texts(Pair.make(target), seed)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_texts_are_the_same_where_memory_is_short(seed: int, target: Runner, tight: Runner) -> None:
    config = EngineConfig(max_running=4, max_batch_tokens=48)
    pair = Pair.make(tight, config=config, interval_s=SELDOM_S)
    assert texts(pair, seed) == texts(Pair.make(target), seed)


def test_many_passes_are_few_calls(target: Runner, calls: Calls) -> None:
    pair = Pair.make(target, interval_s=SELDOM_S)
    heard = [pair.submit([5, 9, first], 41) for first in range(4)]
    pair.run()
    assert calls == {"one": 1, "several": 1}
    for each in heard:
        assert [len(event.ids) for event in each.events] == [1, 40], "the first goes at once"
        last = each.events[-1]
        assert last.sources == [Source.RECOVERED] * 40
        assert last.counts is not None
        assert last.counts.rounds == 41
    load = pair.engine.load()
    assert (load.steps, load.tokens) == (41, 4 * 41)


@given(step_s=st.floats(0.0005, 0.1), texts=st.integers(2, 64))
def test_a_call_takes_about_half_a_beat(step_s: float, texts: int, target: Runner) -> None:
    """Two, between which nothing has to be done, may take all of it."""
    beat = beat_s(0.02, texts)
    passes = Rolling(target, StepCost([(1, step_s), (64, step_s)]), 0.02)._most(texts)
    if passes < 2:
        assert 2 * step_s > 0.99 * beat
    elif passes == 2:
        assert 0.39 * beat < passes * step_s < 1.01 * beat
    elif passes < 64:
        assert 0.39 * beat < passes * step_s < 0.61 * beat


def test_tenants_pay_for_every_pass(target: Runner) -> None:
    """As much as where each is a call of its own: who comes next depends on it."""

    def paid(interval_s: float) -> dict[bytes, int]:
        pair = Pair.make(target, interval_s=interval_s)
        for tenant in (b"one", b"two", b"two"):
            pair.submit([5, 9], 20 * len(tenant), cache_salt=tenant)
        pair.run()
        return pair.engine._scheduler.waiting._rows

    assert paid(SELDOM_S) == paid(0.0)


@pytest.mark.parametrize("interval_s", [0.0, 1e-9])
def test_tokens_that_are_to_go_at_once_do(interval_s: float, target: Runner, calls: Calls) -> None:
    pair = Pair.make(target, interval_s=interval_s)
    heard = [pair.submit([5, 9, first], 9) for first in range(2)]
    pair.run()
    assert calls["several"] == 0
    assert [len(event.ids) for event in heard[0].events] == [1] * 9


def test_times_of_rounds_are_of_each(target: Runner, calls: Calls) -> None:
    pair = Pair.make(target, interval_s=SELDOM_S)
    pair.submit([5, 9], 9)
    timed = pair.submit([5, 8], 9, timed=True)
    pair.run()
    assert calls["several"] == 0
    assert all(event.times is not None for event in timed.events)


def test_who_comes_or_goes_waits_for_one_pass(
    target: Runner, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair.make(target, interval_s=SELDOM_S)
    heard = [pair.submit([5, 9, first], 41) for first in range(3)]
    assert pair.engine.step()
    roll = Runner.roll

    def meanwhile(runner: Runner, *args: Any, **options: Any) -> Rolled:
        if calls["several"] == 0:
            pair.engine.cancel(heard[0].ticket)
            heard.append(pair.submit([5, 9, 77], 41))
        return roll(runner, *args, **options)

    monkeypatch.setattr(Runner, "roll", meanwhile)
    assert pair.engine.step()
    assert [len(each.ids) for each in heard] == [1, 2, 2, 0], "what is cancelled hears no more"
    assert pair.engine.step()
    assert len(heard[3].ids) == 1
    pair.run()
    assert [len(each.ids) for each in heard] == [1, 41, 41, 41]


def test_a_draw_that_compiled_code_is_not_sure_of_is_the_same(
    target: Runner, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were never sure: of the first token of a call, or of the third."""
    expected = texts(Pair.make(target), 3, sampling=WAYS[2])
    roll = Runner.roll

    def doubtful(runner: Runner, segments: Any, slots: Any, *args: Any, **options: Any) -> Rolled:
        if calls["several"] % 2:
            rolled = roll(runner, segments, slots[:0], *args, **options)
            rolled.ids[0] = -1
            return rolled
        rolled = roll(runner, segments, slots, *args, **options)
        rolled.ids[2:] = -1
        return rolled

    monkeypatch.setattr(Runner, "roll", doubtful)
    assert texts(Pair.make(target, interval_s=SELDOM_S), 3, sampling=WAYS[2]) == expected
    assert calls["several"] > 3


def test_where_a_call_fails_passes_stand_alone(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0

    def broken(*args: object, **options: object) -> Rolled:
        nonlocal failed
        failed += 1
        raise RuntimeError("boom")

    expected = texts(Pair.make(target), 3)
    monkeypatch.setattr(Runner, "roll", broken)
    assert texts(Pair.make(target, interval_s=SELDOM_S), 3) == expected
    assert failed


def test_where_a_call_fails_with_its_device_no_pass_is_tried(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> Rolled:
        raise RuntimeError("boom")

    def lost(device: torch.device) -> None:
        raise RuntimeError("illegal address")

    pair = Pair.make(target, interval_s=SELDOM_S)
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "roll", broken)
        patch.setattr(accelerator, "check", lost)
        with pytest.raises(RuntimeError, match="illegal address"):
            texts(pair, 3)
    pair.run()


@pytest.fixture(scope="module")
def plain(demo_target: Path) -> list[list[list[int]]]:
    """Texts of the bundled target, nobody drafting."""
    big = runner(demo_target, "bfloat16")
    return [texts(Pair.make(big), seed, sampling=WAYS[1]) for seed in range(8)]


@pytest.mark.parametrize(
    "method", ["draft", "ngram", "lookahead", "medusa", "eagle", "draft+ngram"]
)
def test_methods_that_leave_drafting_off(
    method: str,
    plain: list[list[list[int]]],
    demo_target: Path,
    demo_draft: Path,
    demo_medusa: Path,
    demo_eagle: Path,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Texts rest for a while, then have drafts, then rest again."""
    read = demo_eagle if method == "eagle" else None
    big, small = runner(demo_target, "bfloat16", eagle=read), runner(demo_draft, "bfloat16")
    looks = 0

    def drafting(gate: Gate, sequences: int, now: float) -> bool:
        nonlocal looks
        looks += 1
        return looks % 200 > 120

    monkeypatch.setattr(Gate, "drafting", drafting)
    # However long a pass takes.
    monkeypatch.setattr(Rolling, "_most", lambda rolling, texts: 4 if texts > 1 else 1)
    options: dict[str, object] = {"method": method, "sampling": WAYS[1]}
    eagle = eagle_of(read, big) if read else None
    made = Pair.make(big, small, heads=heads(demo_medusa, big), eagle=eagle)
    found = [texts(made, seed, **options) for seed in range(8)]
    drafted = made.engine.totals.drafts[method].drafted_tokens
    several = calls["several"]
    assert found == plain
    assert several > 20
    assert drafted > 0
