"""Ids that differ are counted, and the first place is told without any of them."""

from __future__ import annotations

import pytest
from paceline import Result, Usage

from bench.cases import Case
from bench.differences import Place, Tally, differing
from tests.unit.bench.samples import speculation


def case(seed: int) -> Case:
    return Case(
        prompt=seed % 3,
        ids=(7,) * (seed + 1),
        drawn=seed % 2 == 1,
        seed=seed,
        repetition_penalty=1.0,
        draft_tokens=0,
    )


def result(*ids: int, passes: int = 1) -> Result:
    return Result(
        text="",
        token_ids=ids,
        finish_reason="length",
        stop=None,
        usage=Usage(1, len(ids), 0),
        speculation=speculation(passes, 0, 0),
        seed=0,
        request_id="",
        model="",
    )


@pytest.mark.parametrize(
    ("ids", "plain", "places"),
    [
        ((1, 2, 3), (1, 2, 3), []),
        ((1, 5, 3), (1, 2, 3), [1]),
        ((1, 2), (1, 2, 3, 4), [2, 3]),
        ((1, 2, 3), (), [0, 1, 2]),
        ((), (), []),
    ],
)
def test_places_that_differ(
    ids: tuple[int, ...], plain: tuple[int, ...], places: list[int]
) -> None:
    assert differing(ids, plain) == places


def test_a_method_that_keeps_the_promise_has_no_place() -> None:
    tally = Tally(method="draft", dtype="float32")
    for seed in range(3):
        tally.add(case(seed), result(1, 2, 3, 4, passes=2), [1, 2, 3, 4])
    assert (tally.greedy, tally.drawn, tally.tokens, tally.passes) == (2, 1, 12, 6)
    assert tally.tokens_per_pass == pytest.approx(2.0)
    assert (tally.differing_tokens, tally.differing_generations, tally.first) == (0, 0, None)


def test_the_first_place_is_that_of_the_first_case_whichever_ends_first() -> None:
    tally = Tally(method="draft", dtype="float32")
    tally.add(case(5), result(9, 2, 3), [1, 2, 3])
    tally.add(case(4), result(1, 8, 9), [1, 2, 3])
    tally.add(case(6), result(1, 2, 9), [1, 2, 3])
    assert (tally.differing_tokens, tally.differing_generations) == (4, 3)
    assert tally.first == Place(prompt=1, prompt_tokens=5, drawn=False, seed=4, position=1)
