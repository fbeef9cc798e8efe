"""`auto` takes what has been worth most for prompts like this one, and keeps looking."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.verifier.methods.scripted_target import sequence
from verifier.choice import MethodChoice, repeats
from verifier.cost import StepCost
from verifier.sequence import Request

METHODS = ("plain", "draft", "medusa", "ngram")
COST = StepCost(((1, 0.004), (64, 0.008)))
SPEED = {"plain": 250.0, "draft": 400.0, "medusa": 500.0, "ngram": 300.0}
FRESH, REPEATING = tuple(range(40)), (1, 2, 3, 4, 5, 6, 7, 8) * 5


def _run(
    choice: MethodChoice, speed: dict[str, float], prompt: tuple[int, ...], requests: int = 100
) -> Counter[str]:
    """Requests one after the other; the second half's methods."""
    chosen: Counter[str] = Counter()
    for index in range(requests):
        one = sequence(prompt, 50, method="auto", drafters=("d",))
        one.method = choice.choose(one.request)
        choice.learn(one, seconds=40 / speed[one.method], tokens=40)
        if index >= requests // 2:
            chosen[one.method] += 1
    return chosen


def test_the_fastest_method_is_chosen_and_others_are_looked_at_again() -> None:
    chosen = _run(MethodChoice(METHODS, COST), SPEED, FRESH)
    assert chosen.most_common(1)[0][0] == "medusa"
    assert chosen["medusa"] >= 44
    assert sum(chosen.values()) - chosen["medusa"] >= 2


def test_prompts_that_repeat_themselves_are_judged_apart() -> None:
    choice = MethodChoice(METHODS, COST)
    _run(choice, SPEED, FRESH)
    chosen = _run(choice, {**SPEED, "ngram": 900.0}, REPEATING)
    assert chosen.most_common(1)[0][0] == "ngram"


def test_a_method_that_gets_slow_is_left() -> None:
    choice = MethodChoice(METHODS, COST)
    _run(choice, SPEED, FRESH)
    chosen = _run(choice, {**SPEED, "medusa": 200.0}, FRESH, requests=200)
    assert chosen.most_common(1)[0][0] == "draft"


def test_without_drafters_nothing_is_drafted_elsewhere() -> None:
    choice = MethodChoice(METHODS, COST)
    chosen = set()
    for _ in range(30):
        one = sequence(FRESH, 50, method="auto")
        chosen.add(choice.choose(one.request))
    assert chosen == {"plain", "medusa", "ngram"}


def test_who_names_a_method_gets_it() -> None:
    request = Request(request_id="r", prompt_ids=(1,), max_tokens=1, method="draft+ngram")
    assert MethodChoice(METHODS, COST).choose(request) == "draft+ngram"


@pytest.mark.parametrize(("ids", "expected"), [((), False), ((1,), False), (FRESH, False)])
def test_texts_that_say_nothing_twice(ids: tuple[int, ...], expected: bool) -> None:
    assert repeats(ids) == expected
    assert repeats(REPEATING)
