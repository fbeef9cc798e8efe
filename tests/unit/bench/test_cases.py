"""What the sweep of the promise asks for."""

from __future__ import annotations

import pytest

from bench.cases import MOST_LENGTH, Case, make

LENGTHS = (86, 23, 16, 17, 18, 303)
PROMPTS = [list(range(1000 * at, 1000 * at + length)) for at, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def made() -> list[Case]:
    return make(PROMPTS, 192)


def test_half_is_drawn_and_no_two_are_alike(made: list[Case]) -> None:
    drawn = [case for case in made if case.drawn]
    assert len(drawn) == len(made) / 2
    assert len({case.seed for case in made}) == len(made)
    assert len({case.ids for case in made if not case.drawn}) == len(made) / 2


def test_each_is_the_beginning_of_a_bundled_prompt(made: list[Case]) -> None:
    for case in [*made, *make(PROMPTS, 2000)]:
        assert case.ids
        assert list(case.ids) == PROMPTS[case.prompt][: len(case.ids)]


def test_more_of_them_begin_with_the_same_ones(made: list[Case]) -> None:
    assert make(PROMPTS, 10) == made[:10]


@pytest.mark.parametrize("drawn", [False, True])
def test_both_kinds_have_penalties_and_lengths_of_every_size(made: list[Case], drawn: bool) -> None:
    kind = [case for case in made if case.drawn is drawn]
    assert {case.repetition_penalty for case in kind} == {1.0, 1.1}
    assert {case.draft_tokens for case in kind} == set(range(MOST_LENGTH + 1))
    assert sum(case.draft_tokens == 0 for case in kind) == 3 * len(kind) / 4
