"""What rows cost: measured once, scaled by what steps take, shared with the others in a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.model.output import Computed
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner
from tests.tiny_models import VOCAB
from verifier.cost import NO_MORE, StepCost, measure

TABLE = ((1, 0.003), (8, 0.004), (64, 0.011))


def _decoded(cost: StepCost, sequences: int, seconds: float, times: int = 200) -> None:
    for _ in range(times):
        cost.observe(rows=sequences, sequences=sequences, tokens=sequences, seconds=seconds)


def test_between_and_beyond_the_table_cost_is_a_line() -> None:
    cost = StepCost(TABLE)
    assert cost.step_s(1) == pytest.approx(0.003)
    assert cost.step_s(4.5) == pytest.approx(0.0035)
    assert cost.step_s(120) == pytest.approx(0.018)


def test_steps_that_take_twice_as_long_cost_twice_as_much() -> None:
    cost = StepCost(TABLE)
    _decoded(cost, 1, 0.006)
    assert cost.step_s(8) == pytest.approx(0.008, rel=0.01)


def test_a_step_that_was_held_up_says_little_and_a_lasting_change_is_learnt() -> None:
    cost = StepCost(TABLE)
    _decoded(cost, 1, 0.003)
    cost.observe(rows=1, sequences=1, tokens=1, seconds=0.3)
    assert cost.step_s(1) < 0.0037
    _decoded(cost, 1, 0.3)
    assert cost.step_s(1) == pytest.approx(0.3, rel=0.01)


def test_nor_is_a_first_step_that_was_held_up_believed() -> None:
    cost = StepCost(TABLE)
    _decoded(cost, 1, 0.003, times=8)
    cost.observe(rows=1, sequences=1, tokens=1, seconds=30.0)
    assert cost.step_s(1) < 0.01
    _decoded(cost, 1, 0.003, times=20)
    assert cost.step_s(1) == pytest.approx(0.003, rel=0.1)


def test_beside_others_the_same_nodes_are_worth_less() -> None:
    """Alone a token more doubles the rate; beside seven others it adds an eighth."""
    alone, crowded = StepCost(TABLE), StepCost(TABLE)
    _decoded(alone, 1, 0.003)
    _decoded(crowded, 8, 0.004)

    def gain(cost: StepCost) -> float:
        plain = cost.rate(1, cost.round_s(0))
        return cost.rate(2, cost.round_s(1)) / plain

    assert gain(alone) > 1.8
    assert 1.0 < gain(crowded) < 1.13


def test_steps_with_drafts_do_not_say_how_slow_the_machine_is() -> None:
    cost = StepCost(TABLE)
    _decoded(cost, 1, 0.003)
    for _ in range(200):
        cost.observe(rows=8, sequences=1, tokens=3, seconds=0.05)
    assert cost.step_s(1) == pytest.approx(0.003)


def test_a_slow_moment_is_not_believed_while_all_have_drafts() -> None:
    """These take what the table says; one alone may have been lucky."""
    cost = StepCost(TABLE)
    _decoded(cost, 1, 0.009)
    cost.observe(rows=8, sequences=1, tokens=3, seconds=0.004)
    assert cost.step_s(1) == pytest.approx(0.009)
    for _ in range(50):
        cost.observe(rows=8, sequences=1, tokens=3, seconds=0.004)
    assert cost.step_s(1) == pytest.approx(0.003)
    _decoded(cost, 1, 0.009)
    cost.observe(rows=8, sequences=1, tokens=3, seconds=0.004)
    assert cost.step_s(1) == pytest.approx(0.009), "the past says nothing"


def test_what_comes_once_a_step_is_not_taken_for_a_slow_moment() -> None:
    """It weighs more in a step of one row, which is slower by the table than one of eight."""
    cost = StepCost(TABLE)
    for _ in range(5):
        _decoded(cost, 1, 0.003 + 0.0008, times=20)
        for _ in range(100):
            cost.observe(rows=8, sequences=1, tokens=3, seconds=0.004 + 0.0008)
        assert cost.step_s(1) == pytest.approx(0.0038, rel=0.01)


def test_rows_of_several_texts_say_nothing_of_those_of_one() -> None:
    """They are computed side by side, faster than the table says."""
    cost = StepCost(TABLE)
    _decoded(cost, 2, cost.step_s(2))
    for turn in range(200):
        cost.observe(rows=16, sequences=2, tokens=6, seconds=0.002)
        if turn % 15 == 0:
            cost.observe(rows=8, sequences=1, tokens=3, seconds=0.002)
    assert cost.step_s(1) == pytest.approx(0.003)


def test_plain_steps_between_rounds_with_drafts_do_not_either() -> None:
    """They meet cold caches, and would make drafts look better than they are."""
    cost = StepCost(TABLE)
    _decoded(cost, 1, 0.003)
    for _ in range(200):
        cost.observe(rows=8, sequences=1, tokens=3, seconds=0.05)
        _decoded(cost, 1, 0.006, times=3)
    assert cost.step_s(1) == pytest.approx(0.003)
    _decoded(cost, 1, 0.006)
    assert cost.step_s(1) == pytest.approx(0.006, rel=0.01)


def test_the_others_of_a_step_count_while_they_draft() -> None:
    cost = StepCost(TABLE)
    cost.observe(rows=40, sequences=8, tokens=16, seconds=0.007)
    assert cost.rate(2, 1.0) == pytest.approx(16)
    assert cost.plain_s < cost.round_s(0)


def _timed(
    target: Runner, monkeypatch: pytest.MonkeyPatch, pass_s: Callable[[int], float]
) -> list[int]:
    """Has passes take time by how many of their size there were; returns the rows of each."""
    now, made = 0.0, []

    def forward(segments: list[Segment]) -> Computed:
        nonlocal now
        rows = len(segments[0].ids)
        now += pass_s(made.count(rows))
        made.append(rows)
        return Computed(torch.zeros(1, 1), torch.zeros(1, 1))

    monkeypatch.setattr(target, "forward", forward)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    return made


@pytest.mark.parametrize(
    ("pass_s", "passes"),
    [(0.001, 2 * 60), (0.006, 2 * 34), (0.011, 19 + 1), (0.3, 4 + 1), (0.7, 2 + 1), (9.0, 1 + 1)],
)
def test_long_passes_are_timed_less_often(
    pass_s: float, passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first of a size sets up is in none of the times, and takes none of the time."""
    target = runner(tiny_models.save("llama", tmp_path))
    made = _timed(target, monkeypatch, lambda before: pass_s if before else 60.0)
    assert measure(target, (2, 3)).table == [(2, pytest.approx(pass_s)), (3, pytest.approx(pass_s))]
    assert made.count(2) == made.count(3) == passes


def test_rows_have_tokens_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all the vocabulary: alike ones would choose the same experts."""
    target = runner(tiny_models.save("llama", tmp_path))
    seen: list[list[int]] = []

    def forward(segments: list[Segment]) -> Computed:
        seen.append([*segments[0].ids])
        return Computed(torch.zeros(1, 1), torch.zeros(1, 1))

    monkeypatch.setattr(target, "forward", forward)
    measure(target, (1, 2, 5, 64))
    assert {len(ids) for ids in seen} == {1, 2, 5, 64}
    for ids in seen:
        assert len(set(ids)) == len(ids)
        assert max(ids) >= VOCAB - VOCAB // len(ids) - 1


def test_a_pass_that_is_captured_is_in_none_of_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the first of a size compiles, the second becomes a graph, and all after are that."""
    target = runner(tiny_models.save("llama", tmp_path))
    made = _timed(target, monkeypatch, lambda before: 3.0 if before < 2 else 2.0)
    monkeypatch.setattr(target, "loaded", replace(target.loaded, device=torch.device("cuda")))
    assert measure(target, (2, 3)).table == [(2, 2.0), (3, 2.0)]
    assert made.count(2) == made.count(3) == 2 + 1


def test_a_model_is_measured_at_every_size_that_fits(tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path, max_position_embeddings=40))
    table = measure(target, (1, 2, 3, 8, 32, 64)).table
    assert [rows for rows, _ in table] == [1, 2, 3, 8, 32]
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(table))
    assert target.pool.blocks.held == 0


@pytest.mark.parametrize("max_len", [512, 2048])
def test_what_further_positions_add_is_measured_for_few_rows(
    max_len: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = runner(tiny_models.save("llama", tmp_path, max_position_embeddings=max_len))
    now = 0.0

    def forward(segments: list[Segment]) -> Computed:
        nonlocal now
        rows, before = len(segments[0].ids), segments[0].start
        now += 0.001 * rows + 1e-6 * (before - 128) * (rows + 1)
        return Computed(torch.zeros(1, 1), torch.zeros(1, 1))

    monkeypatch.setattr(target, "forward", forward)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    table, position_s = measure(target, (1, 2, 8))
    assert [seconds for _, seconds in table] == pytest.approx([0.001, 0.002, 0.008])
    assert position_s == [(1, pytest.approx(2e-6)), (8, pytest.approx(9e-6))]
    cost = StepCost(table, position_s)
    for behind in (64, 128, 1024, 1536):
        cost.stand_behind(behind)
        for rows in (1, 2, 8):
            exact = 0.001 * rows + 1e-6 * (behind - 128) * (rows + 1)
            assert cost.step_s(rows) == pytest.approx(exact)
            assert dict(cost.table_behind(behind))[rows] == pytest.approx(exact)


def test_what_positions_add_does_not_fall_with_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it seems so, where something else took its time."""
    target = runner(tiny_models.save("llama", tmp_path, max_position_embeddings=2048))
    now, slow = 0.0, {1: 1e-6, 2: 1e-6, 8: 3e-6, 32: 1e-6}

    def forward(segments: list[Segment]) -> Computed:
        nonlocal now
        rows, before = len(segments[0].ids), segments[0].start
        now += 0.001 + slow[rows] * (before - 128)
        return Computed(torch.zeros(1, 1), torch.zeros(1, 1))

    monkeypatch.setattr(target, "forward", forward)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    found = measure(target, (1, 2, 8, 32)).position_s
    assert [seconds for _, seconds in found] == pytest.approx([1e-6, 3e-6, 3e-6])


def test_a_model_too_short_for_it_is_measured_behind_one_number_of_positions(
    tmp_path: Path,
) -> None:
    target = runner(tiny_models.save("llama", tmp_path, max_position_embeddings=128))
    assert measure(target, (1, 8)).position_s == NO_MORE


def test_what_steps_take_behind_long_texts_is_not_taken_for_a_slow_machine() -> None:
    cost = StepCost(TABLE, ((1, 1e-6), (64, 2e-6)))
    for behind in (128, 1152, 128):
        cost.stand_behind(behind)
        _decoded(cost, 1, 0.003 + (behind - 128) * 1e-6)
        assert cost.step_s(1) == pytest.approx(0.003 + (behind - 128) * 1e-6)
