"""`auto` takes what has been worth most for requests like this one, and keeps looking."""

from __future__ import annotations

from collections import Counter

import pytest

from common.sampling_params import SamplingParams
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.choice import Domain, MethodChoice, domain, repeated
from verifier.cost import StepCost
from verifier.sequence import Request

METHODS = ("plain", "draft", "medusa", "ngram")
ALL = {*METHODS, "draft+ngram", "medusa+ngram"}
COST = StepCost(((1, 0.004), (64, 0.008)))
SPEED = {
    "plain": 250.0,
    "draft": 400.0,
    "medusa": 500.0,
    "ngram": 300.0,
    "draft+ngram": 380.0,
    "medusa+ngram": 450.0,
}
FRESH, REPEATING = tuple(range(40)), (1, 2, 3, 4, 5, 6, 7, 8) * 5


def _run(
    choice: MethodChoice,
    speed: dict[str, float],
    prompt: tuple[int, ...],
    requests: int = 100,
    *,
    tenant: bytes = b"",
    temperature: float = 0.0,
) -> Counter[str]:
    """Requests one after the other; the second half's methods."""
    chosen: Counter[str] = Counter()
    for index in range(requests):
        one = sequence(
            prompt,
            50,
            method="auto",
            drafters=("d",),
            cache_salt=tenant,
            sampling=SamplingParams(temperature=temperature),
        )
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


def test_every_method_is_tried_at_first_and_hybrids_of_what_there_is() -> None:
    choice = MethodChoice(METHODS, COST)
    assert set(_run(choice, SPEED, FRESH, 2 * len(ALL))) <= ALL
    assert {name for name in ALL if choice._everybody.of(name).begun == 2} == ALL
    assert "medusa+ngram" not in MethodChoice(("plain", "draft", "ngram"), COST)._methods


def test_a_hybrid_is_chosen_where_it_is_worth_most() -> None:
    chosen = _run(MethodChoice(METHODS, COST), {**SPEED, "draft+ngram": 700.0}, FRESH)
    assert chosen.most_common(1)[0][0] == "draft+ngram"


@pytest.mark.parametrize(
    ("prompt", "temperature"), [(REPEATING, 0.0), (FRESH, 0.8)], ids=["repeating", "drawn"]
)
def test_domains_are_judged_apart(prompt: tuple[int, ...], temperature: float) -> None:
    choice = MethodChoice(METHODS, COST)
    _run(choice, SPEED, FRESH)
    chosen = _run(choice, {**SPEED, "ngram": 900.0}, prompt, temperature=temperature)
    assert chosen.most_common(1)[0][0] == "ngram"
    assert _run(choice, SPEED, FRESH).most_common(1)[0][0] == "medusa"


def test_tenants_are_judged_apart_and_begin_where_others_are() -> None:
    choice = MethodChoice(METHODS, COST)
    _run(choice, SPEED, FRESH, tenant=b"a")
    one = sequence(FRESH, 50, method="auto", drafters=("d",), cache_salt=b"b")
    assert choice.choose(one.request) == "medusa"
    odd = {name: 900.0 - speed for name, speed in SPEED.items()}
    assert _run(choice, odd, FRESH, tenant=b"b").most_common(1)[0][0] == "plain"
    assert _run(choice, SPEED, FRESH, tenant=b"a", requests=4)["medusa"] == 2


def test_tenants_are_forgotten_where_there_are_too_many() -> None:
    choice = MethodChoice(METHODS, COST)
    for tenant in range(1000):
        _run(choice, SPEED, FRESH, requests=1, tenant=str(tenant).encode())
    assert len(choice._own) <= 256


def test_looking_around_is_bounded() -> None:
    """After two trials each: one request in four while a method is new here, then one in 16."""
    choice = MethodChoice(METHODS, COST)
    _run(choice, SPEED, FRESH, 2 * len(ALL), tenant=b"a")
    chosen = _run(choice, SPEED, REPEATING, 2 * 320, tenant=b"b")
    assert chosen["medusa"] == 320 - 320 // 16


def test_what_is_far_behind_is_tried_again_seldom() -> None:
    choice = MethodChoice(METHODS, COST)
    chosen = _run(choice, {**SPEED, "draft": 20.0}, FRESH, 2 * 640)
    assert 1 <= chosen["draft"] <= 640 // 64
    assert chosen["ngram"] > chosen["draft"]


def test_a_method_that_gets_slow_is_left() -> None:
    choice = MethodChoice(METHODS, COST)
    _run(choice, SPEED, FRESH)
    slow = {**SPEED, "medusa": 200.0, "medusa+ngram": 220.0}
    chosen = _run(choice, slow, FRESH, requests=200)
    assert chosen.most_common(1)[0][0] == "draft"


def _end_early(choice: MethodChoice, requests: int) -> Counter[str]:
    """Requests whose outputs are too short to say anything; the methods they ran."""
    chosen: Counter[str] = Counter()
    for _ in range(requests):
        one = sequence(FRESH, 50, method="auto", drafters=("d",))
        one.method = choice.choose(one.request)
        choice.learn(one, seconds=0.01, tokens=4)
        chosen[one.method] += 1
    return chosen


@pytest.mark.parametrize("short", [2 * len(ALL), 1000])
def test_trials_that_came_to_nothing_are_made_up_for(short: int) -> None:
    choice = MethodChoice(METHODS, COST)
    _end_early(choice, short)
    _run(choice, SPEED, FRESH, 5 * len(ALL))
    assert all(choice._everybody.of(name).measured for name in ALL)
    assert _run(choice, SPEED, FRESH)["medusa"] >= 44


def test_texts_that_all_end_early_are_no_reason_to_look_around() -> None:
    choice = MethodChoice(METHODS, COST)
    _end_early(choice, 8 * len(ALL))
    assert _end_early(choice, 320)["plain"] >= 320 - 320 // 16


def test_a_method_that_only_fails_is_seldom_tried() -> None:
    choice, chosen = MethodChoice(METHODS, COST), Counter[str]()
    for _ in range(1000):
        one = sequence(FRESH, 50, method="auto", drafters=("d",))
        one.method = choice.choose(one.request)
        chosen[one.method] += 1
        if one.method != "medusa":
            choice.learn(one, seconds=40 / SPEED[one.method], tokens=40)
    assert 10 <= chosen["medusa"] <= 50


def test_without_drafters_nothing_is_drafted_elsewhere() -> None:
    choice = MethodChoice(METHODS, COST)
    chosen = set()
    for _ in range(30):
        one = sequence(FRESH, 50, method="auto")
        chosen.add(choice.choose(one.request))
    assert chosen == {"plain", "medusa", "ngram", "medusa+ngram"}


def test_who_names_a_method_gets_it() -> None:
    request = Request(request_id="r", prompt_ids=(1,), max_tokens=1, method="draft+ngram")
    assert MethodChoice(METHODS, COST).choose(request) == "draft+ngram"


@pytest.mark.parametrize(("ids", "share"), [((), 0.0), ((1,), 0.0), (FRESH, 0.0)])
def test_texts_that_say_nothing_twice(ids: tuple[int, ...], share: float) -> None:
    assert repeated(ids) == share
    assert repeated(REPEATING) > 0.5


def test_domains() -> None:
    """By how much of a prompt was there before, and by whether tokens are drawn."""
    some = (*range(60), *range(10))
    for ids, repeats in ((FRESH, 0), (some, 1), (REPEATING, 2)):
        for temperature in (0.0, 0.7):
            sampling = SamplingParams(temperature=temperature)
            request = Request(request_id="r", prompt_ids=ids, max_tokens=1, sampling=sampling)
            assert domain(request) == Domain(repeats, temperature > 0)
