"""Rolls of the CUDA decoder, interpreted where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model import sampling
from common.model.kv_cache import KvLease
from common.model.output import Computed, Output
from common.model.roll import Certainty, Limit, Rolled, RollOptions
from common.model.row import Row
from common.model.runner import Runner
from common.model.seen import seen
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from drafter.config import EngineConfig
from drafter.engine import DraftEngine
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import MAX_LEN, VOCAB
from tests.unit.common.model import rolls
from tests.unit.drafter.by_hand import Verifier

pytest.importorskip("triton")

from common.model.cuda import draw
from common.model.cuda import model as model_module
from common.model.cuda.drawings import WORDS
from common.model.cuda.keys import Size
from common.model.cuda.model import CudaModel
from common.model.cuda.rolling import Drawn, Told
from tests.unit.common.model.cuda.fake_graphs import FakeGraphs, Launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def target(tmp_path: Path, cuda: pytest.MonkeyPatch, draws: None) -> Runner:
    cuda.setattr(Runner, "_settle", lambda self: None)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    found = runner(tiny_models.save("llama", tmp_path, **sizes), device=DEVICE)
    assert found.rolls
    return found


def test_kernels_are_compiled_for_a_model_before_it_serves(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that draw from its logits and from those of heads, and that passes go on by."""
    kinds: list[tuple[torch.dtype, int]] = []
    advanced: list[Size] = []
    forward, drawn, advance = target.forward, draw.draw, model_module.advance

    def draws(logits: Tensor, *rest: Tensor) -> None:
        kinds.append((logits.dtype, logits.shape[1]))
        drawn(logits, *rest)

    def advances(words: Tensor, size: Size, drawn: Drawn) -> None:
        advanced.append(size)
        advance(words, size, drawn)

    def half(segments: Sequence[Segment]) -> Output:
        output = forward(segments)
        return Computed(output.logits.half(), output.states)

    monkeypatch.setattr(draw, "draw", draws)
    monkeypatch.setattr(model_module, "advance", advances)
    monkeypatch.setattr(target, "forward", half)
    target._compile()
    assert kinds == [(torch.float16, VOCAB), (torch.float32, VOCAB)]
    assert len(advanced) == 1
    assert target.pool.blocks.held == 0


def test_rolling_on_is_step_after_step(target: Runner) -> None:
    rolls.is_step_after_step(target, 0)
    rolls.is_step_after_step_behind_a_tree(target, 2)
    rolls.with_draws_is_step_after_step(target, 2)


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # numpy's, of infinity
@pytest.mark.parametrize("seed", range(2))
def test_rolls_follow_what_changes_logits(
    seed: int, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch does, token after token."""
    if DEVICE == "cpu":
        monkeypatch.setattr(sampling, "drawer", lambda device: None)
    rolls.with_changes_is_step_after_step(target, 2, seed)


def test_levels_are_one_graph(target: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what all graphs write to is read before the next one writes."""
    model = target.loaded.forward
    assert isinstance(model, CudaModel)
    monkeypatch.setattr(model_module, "_MOST_ROWS", 16)
    graphs = FakeGraphs.into(model, rows=16)
    rolls.is_step_after_step(target, 3)
    first, *further = graphs.kinds[:4]
    assert isinstance(first, Size)
    assert further == [(Size(4, 2, 8, 1, 4), 3)] * 3
    assert graphs.kept[1:4] == [0, 0, 0], "what a graph returns is memory of its own"
    many = tuple(range(3, 20))
    graphs.kinds.clear()
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(len(many) + 2)
    slots = lease.slots[len(many) : len(many) + 2][:, None]
    rolled = target.roll(
        [Segment(many, 0, lease.slots, wanted=[16])], slots, RollOptions(model_module._MOST_BEST)
    )
    assert graphs.kinds == [(Size(4, 1, 8, 1, 4), 16)] * 2, "the first pass had too many rows"
    assert np.isfinite(rolled.behind).all()

    graphs.kinds.clear()
    biased = SamplingParams(logit_bias=dict.fromkeys(range(90), -1e9))
    segment, drawings = Segment([3], 0, lease.slots, wanted=[0]), [Row(biased, 1).drawing]
    expected = target.roll([segment], slots, RollOptions(1, drawings=drawings)).ids
    assert len(graphs.kinds) == 3
    monkeypatch.setattr(model, "_drawn", Drawn.room(16, 16, 16 * WORDS, model._words.device))
    graphs.kinds.clear()
    found = target.roll([segment], slots, RollOptions(1, drawings=drawings)).ids
    assert np.array_equal(found, expected)
    assert len(graphs.kinds) == 1, "what changes logits is more than graphs read"


@pytest.mark.skipif(DEVICE == "cuda", reason="shown by tests/gpu")
def test_replays_read_what_is_new(target: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it: tokens, where they stand and see, and how they are drawn from which logits."""
    model = target.loaded.forward
    assert isinstance(model, CudaModel)
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(16)

    def rolled(turn: int) -> Rolled:
        segment = Segment([5 + turn, 9, 33][turn:], turn, lease.slots, wanted=[0])
        params = SamplingParams(
            temperature=0.9, seed=turn, repetition_penalty=2.0 ** (turn - 1), logit_bias={turn: 9.0}
        )
        mask = seen(range(40 * turn, 40 * turn + 40), VOCAB, torch.device(DEVICE))
        drawing = Row(params, 9 * turn, mask, (7,) * turn).drawing
        slots = lease.slots[None, 8 - turn : 9 - turn]
        return target.roll([segment], slots, RollOptions(2, drawings=[drawing]))

    expected = [rolled(turn) for turn in range(3)]
    graphs = Launches.of(model, monkeypatch)
    for turn, (ids, behind, _) in enumerate(expected):  # as it is, captured, replayed
        found = rolled(turn)
        assert np.array_equal(found.ids, ids)
        assert np.array_equal(found.behind, behind)
    assert [graph.replays for graph in graphs] == [2, 2], (
        "of what a roll begins with, and of a level"
    )


@pytest.mark.parametrize("certain", [False, True])
def test_the_next_pass_is_launched_before_the_last_is_looked_at(
    certain: bool, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those that what it found may end; and never after it was enough."""
    model = target.loaded.forward
    assert isinstance(model, CudaModel)
    done: list[str] = []
    run, wait = CudaModel._run, Told.wait
    monkeypatch.setattr(CudaModel, "_run", lambda *args: done.append("run") or run(*args))
    monkeypatch.setattr(Told, "wait", lambda told: done.append("look") or wait(told))
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(8)
    over: list[bool] = []
    certainty = Certainty([0.0], [[1.0, 1.0]], [[0.0]], [0], [1.0]) if certain else None
    segment = Segment([5, 9], 0, lease.slots, wanted=[1])
    slots = lease.slots[2:6][:, None]
    for level, _ in enumerate(
        model.levels([segment], slots, RollOptions(2, certainty), lambda: bool(over))
    ):
        if level == 1:
            over.append(True)
        done.append(f"tell {level}")
    launch_first = ["run", "run", "look", "tell 0", "run", "look", "tell 1", "look", "tell 2"]
    look_first = ["run", "look", "run", "tell 0", "look", "run", "tell 1", "look", "tell 2"]
    assert done == (look_first if certain else launch_first)


def test_no_row_goes_beyond_the_models_length(target: Runner) -> None:
    """Not unseen either, as one whose text is over beside others: there are no angles for it."""
    lease, other = KvLease(target.pool.blocks), KvLease(target.pool.blocks)
    assert lease.reserve(MAX_LEN)
    assert other.reserve(8)
    for left in (2, 0):
        ending = Segment([5], MAX_LEN - 1 - left, lease.slots, wanted=[0])
        segments = [ending, Segment([7, 9], 0, other.slots, wanted=[1])]
        slots = [[0, int(slot)] for slot in other.slots[2:7]]
        options = RollOptions(1, limits=[Limit(left + 1, ()), Limit(6, ())])
        assert len(target.roll(segments, slots, options).ids) == left + 1


def test_rows_of_a_roll_end_each_on_its_own(target: Runner) -> None:
    rolls.ends_where_rows_are_too_unlikely(target, 0, levels=3)
    rolls.ends_with_texts(target, 0, levels=3)


def test_a_text_whose_logits_change_holds_nobody_up(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside it others go on from pass to pass, and so do its drafts; the tokens are the same."""
    calls: list[str] = []
    for name in ("forward", "roll", "levels"):
        monkeypatch.setattr(Runner, name, _noted(getattr(Runner, name), calls))
    changed = SamplingParams(repetition_penalty=0.5, logit_bias={7: 2.0}, temperature=0.9, seed=1)
    cases = [([5, 9, 33], changed), ([61], SamplingParams())]
    found = Pair.make(target).generate_all(cases, 4)
    assert calls == ["forward", "levels"]
    verifier = Verifier(DraftEngine(target, EngineConfig()))
    verifier.open(1, [5, 9], sampling=changed)
    verifier.settle()
    calls.clear()
    verifier.commit(1, 2, [33], wanted=3, fanout=1)
    while not (drafted := [each.ids for each in verifier.replies if each.round is not None]):
        assert verifier.engine.step()
    assert calls == ["forward", "roll"], "a pass was timed first"
    monkeypatch.setattr(Runner, "tells_of_each", False)
    monkeypatch.setattr(Runner, "rolls", False)
    calls.clear()
    assert Pair.make(target).generate_all(cases, 4) == found
    assert calls == ["forward"] * 4
    assert found[0][:3] == list(drafted[0])
    verifier.engine.sessions.forget(verifier.receive)


def _noted(call: Any, calls: list[str]) -> Any:
    """A call of a runner, whose name is noted."""

    def noted(*args: Any, **options: Any) -> Any:
        calls.append(call.__name__)
        return call(*args, **options)

    return noted


@pytest.mark.parametrize("rung", [False, True])
def test_news_ends_a_roll_between_passes(rung: bool, target: Runner) -> None:
    assert rolls.passes_beside_news(target, rung=rung) == (1 if rung else 3)
