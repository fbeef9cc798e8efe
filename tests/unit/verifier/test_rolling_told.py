"""Calls that tell of each pass while the next one runs, as a GPU's do: the same texts.

The CPU's compiled decoder stands in for it: it makes all passes at once and tells of one after the
other, so what follows has been written to the cache when a pass is told of.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.roll import RollOptions
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import sample
from common.sampling_params import SamplingParams
from tests.inprocess import Collected, Pair
from tests.unit.verifier.rolled_texts import begin, rolling_runner, texts
from verifier import rolling
from verifier.config import EngineConfig
from verifier.cost import StepCost

pytestmark = pytest.mark.usefixtures("nothing_left")


def _levels(
    runner: Runner,
    segments: Sequence[Any],
    slots: np.ndarray,
    options: RollOptions,
    enough: Callable[[], bool],
) -> Iterator[np.ndarray]:
    drawings = options.drawings
    rolled = Runner.roll(runner, segments, slots, options._replace(best=2 if drawings else 1))
    for row in (rolled.ids[0, :, 0] < 0).nonzero()[0].tolist():  # it was not sure of a draw
        assert rolled.output is not None
        seed, position, top_k, temperature, top_p, min_p, how = drawings[row]
        params = SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
        )
        mask = None
        if how is not None:
            biases = dict(zip(how.ids.tolist(), how.biases.tolist(), strict=True))
            params = replace(params, logit_bias=biases, repetition_penalty=how.penalty)
            mask = how.seen
        logits = rolled.output.logits[row : row + 1]
        rolled.ids[0, row, 0] = sample(logits, [Row(params, position, mask)])[0]
    for ids in rolled.ids[:, :, 0]:
        last = enough() or bool(select.select([options.news], [], [], 0)[0])
        yield ids
        if last:
            return


@pytest.fixture(autouse=True, scope="module")
def _told() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "tells_of_each", True)
        patch.setattr(Runner, "levels", _levels)
        yield


@pytest.fixture(scope="module")
def target(directory: Path) -> Runner:
    return rolling_runner(directory)


def _one_by_one(target: Runner, seed: int) -> list[list[int]]:
    """The texts where every pass is a call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "tells_of_each", False)
        return texts(Pair.make(target), seed)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_texts_are_the_same(seed: int, target: Runner) -> None:
    assert texts(Pair.make(target), seed) == _one_by_one(target, seed)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_texts_are_the_same_where_memory_is_short(seed: int, target: Runner, tight: Runner) -> None:
    config = EngineConfig(max_running=4, max_batch_tokens=48)
    assert texts(Pair.make(tight, config=config), seed) == _one_by_one(target, seed)


def test_every_token_goes_out_at_once(target: Runner) -> None:
    """Of one text, too; and a tenant pays for each."""
    pair = Pair.make(target)
    heard = pair.submit([5, 9], 41)
    steps = 0
    while pair.engine.live:
        pair.engine.step()
        steps += 1
    assert [len(event.ids) for event in heard.events] == [1] * 41
    assert steps == 2 + 40 // rolling._MOST_TOLD, "of the prompt, and calls"
    load = pair.engine.load()
    assert (load.steps, load.tokens) == (41, 41)
    assert list(pair.engine._scheduler.waiting._rows.values()) == [42], "two of its prompt"


@pytest.mark.parametrize("texts", [1, 2])
def test_what_one_text_saves_says_nothing_of_drafts(
    texts: int, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are what drafts are measured against; several texts are measured with and without."""
    observed: list[float] = []
    monkeypatch.setattr(StepCost, "observe", lambda cost, **step: observed.append(step["seconds"]))
    pair = Pair.make(target)
    for first in range(texts):
        pair.submit([5, 9, first], 31)
    pair.run()
    assert bool(observed) == (texts > 1)


def test_who_comes_or_goes_ends_a_call(target: Runner) -> None:
    """After the pass that was begun already."""
    pair = Pair.make(target)
    heard: list[Collected] = [pair.submit([5, 9, first], 31) for first in range(2)]
    pair.engine.step()
    tell = heard[0].__call__

    def cancelling(event: Any) -> None:
        tell(event)
        if len(heard[0].ids) == 4:
            pair.engine.cancel(heard[0].ticket)
            heard.append(pair.submit([7, 3], 5))

    pair.engine._scheduler.running[0].listener = cancelling
    pair.engine.step()
    assert [len(each.ids) for each in heard] == [4, 5, 0]
    pair.engine.step()
    assert len(heard[2].ids) == 1
    pair.run()
    assert [len(each.ids) for each in heard] == [4, 31, 5]


def test_a_call_that_fails_on_its_way_keeps_what_it_told(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _one_by_one(target, 4)

    def breaking(*args: Any) -> Iterator[np.ndarray]:
        levels = _levels(*args)
        yield next(levels)
        raise RuntimeError("boom")

    monkeypatch.setattr(Runner, "levels", breaking)
    assert texts(Pair.make(target), 4) == expected


def test_a_drafter_that_cannot_be_told_ends_nothing(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it have passes run again for whoever left meanwhile."""
    expected = _one_by_one(target, 5)
    pair = Pair.make(target)

    def broken() -> None:
        raise OSError("boom")

    monkeypatch.setattr(pair.engine.methods, "flush", broken)
    heard = begin(pair, 5)
    heard[0].events.clear()
    pair.engine.step()
    pair.engine.cancel(heard[0].ticket)
    pair.run()
    assert [each.ids for each in heard[1:]] == expected[1:]
    assert all(event.error is None for event in heard[0].events)
