"""How many sequences there are decides what drafts are worth; odd moments do not."""

from __future__ import annotations

import pytest

from verifier.gates.load import LoadLevel

STEP_S = 0.004


def _see(load: LoadLevel, sequences: int, seconds: float) -> int:
    for _ in range(round(seconds / STEP_S)):
        load.see(sequences, load.seen_at + STEP_S)
    return load.level


@pytest.mark.parametrize(
    ("sequences", "level"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 2), (6, 3), (16, 4), (23, 5)]
)
def test_each_level_is_about_twice_the_one_before(sequences: int, level: int) -> None:
    assert _see(LoadLevel(), sequences, 1.0) == level


def test_more_are_more_at_once() -> None:
    load = LoadLevel()
    assert [load.see(sequences, 0.0) for sequences in (1, 2, 4, 8, 16)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("many", "left", "seconds"), [(16, 8, 0.1), (16, 2, 0.3), (2, 1, 0.17)])
def test_less_may_be_a_gap(many: int, left: int, seconds: float) -> None:
    load = LoadLevel()
    before = _see(load, many, 1.0)
    assert _see(load, left, seconds / 4) == before
    assert _see(load, left, 3 * seconds) < before


@pytest.mark.parametrize("many", [3, 4, 16, 64])
def test_one_that_is_left_of_many_is_soon_alone(many: int) -> None:
    load = LoadLevel()
    _see(load, many, 1.0)
    assert _see(load, 1, 0.048) > 0
    assert _see(load, 1, 0.008) == 0


def test_of_two_one_may_be_missing_for_longer() -> None:
    load = LoadLevel()
    _see(load, 2, 1.0)
    assert _see(load, 1, 0.12) == 1


def test_one_that_is_left_while_others_follow_is_not() -> None:
    load = LoadLevel()
    _see(load, 16, 1.0)
    for _ in range(20):
        assert _see(load, 1, 0.04) > 0
        _see(load, 16, 0.02)


def test_a_pause_is_no_time_in_which_one_was_alone() -> None:
    """The last text of a burst, and the first of the next one."""
    load = LoadLevel()
    _see(load, 16, 1.0)
    _see(load, 1, STEP_S)
    assert load.see(1, load.seen_at + 0.1, idle_s=0.096) > 0
