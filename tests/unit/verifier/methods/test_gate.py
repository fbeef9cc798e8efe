"""Drafts beside others go on only where they make everybody faster."""

from __future__ import annotations

import pytest

from verifier.methods.gate import Gate

STEP_S = 0.004


def _run(gate: Gate, sequences: int, with_drafts: int, without: int, steps: int = 6000) -> float:
    """Steps that commit so many tokens; the share of the second half that drafted."""
    drafted = 0
    for step in range(steps):
        on = gate.drafting(sequences, step * STEP_S)
        gate.count(with_drafts if on else without)
        drafted += on and step >= steps // 2
    return drafted / (steps // 2)


def test_alone_it_is_always_open() -> None:
    assert _run(Gate(), 1, with_drafts=1, without=9) == 1.0


@pytest.mark.parametrize("sequences", [2, 8, 31])
def test_beside_others_the_better_mode_wins_and_the_other_is_tried_again(sequences: int) -> None:
    assert 0.85 < _run(Gate(), sequences, with_drafts=12, without=8) < 1.0
    assert 0.0 < _run(Gate(), sequences, with_drafts=7, without=8) < 0.15


def test_loads_are_judged_apart() -> None:
    gate = Gate()
    assert _run(gate, 2, with_drafts=12, without=8) > 0.85
    assert _run(gate, 8, with_drafts=7, without=8) < 0.15
    assert _run(gate, 2, with_drafts=12, without=8) > 0.85


def test_a_load_that_changes_within_a_window_teaches_nothing() -> None:
    gate = Gate()
    for step in range(1000):
        gate.drafting(2 if step % 2 else 8, step * STEP_S)
        gate.count(5)
    assert all(not level.rates for level in gate._levels.values())
