"""Forecasts: likeliest first, measured, and no more of them than pays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.pool.calibration import Calibration, Trust
from verifier.pool.contexts import Contexts
from verifier.pool.forecast import Forecast, Forecaster, Origin, Source

FREE = StepCost()
DEAR = StepCost(((1, 1.0), (64, 64.0)))


def _forecaster(
    ids: list[int], cost: StepCost = FREE, others: list[int] | None = None
) -> Forecaster:
    text, shared = Contexts(3), Contexts(3)
    text.extend(ids, 0)
    shared.extend(others or [], 0)
    sources = [Source(Origin.TEXT, text.followers), Source(Origin.SHARED, shared.followers)]
    return Forecaster(sources, 3, Calibration(), cost)


def _paths(forecast: Forecast) -> list[list[int]]:
    paths: list[list[int]] = []
    for parent, token in zip(forecast.parents, forecast.tokens, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


@given(
    ids=st.lists(st.integers(0, 5), min_size=2, max_size=80),
    most=st.integers(1, 20),
    line=st.lists(st.integers(0, 5), max_size=6),
)
def test_candidates_are_a_trie_by_falling_chance(
    ids: list[int], most: int, line: list[int]
) -> None:
    forecast = _forecaster(ids).forecast(ids, most, line, 8)
    assert len(forecast) <= most
    assert forecast.worth <= len(forecast)
    assert forecast.chances == sorted(forecast.chances, reverse=True)
    assert all(parent < index for index, parent in enumerate(forecast.parents))
    paths = _paths(forecast)
    assert len({tuple(path) for path in paths}) == len(paths)
    for below in forecast.below.values():
        parent = forecast.parents[below[0]]
        above = forecast.chances[parent] if parent >= 0 else 1.0
        assert sum(forecast.chances[index] for index in below) <= above * 1.5  # trust's most

    tree = TokenTree(ids[-1])
    forecast.plant(tree, len(forecast))
    assert len(tree) == 1 + len(forecast)
    planted = [[tree.ids[node] for node in tree.path(index)] for index in range(1, len(tree))]
    assert sorted(planted) == sorted(paths)


def test_longer_contexts_are_believed_first() -> None:
    ids = [1, 2, 3, 9, 2, 4, 9, 2, 4, 8, 2, 4, 1, 2]
    forecast = _forecaster(ids).forecast(ids, 8)
    assert forecast.tokens[0] == 3, "after 1, 2; 4 is commoner after 2 alone"
    assert 4 in forecast.tokens


def test_a_long_match_comes_first_and_goes_on() -> None:
    ids = [1, 2, 3, 4]
    forecast = _forecaster(ids).forecast(ids, 6, [50, 51, 52, 53], 30)
    assert _paths(forecast)[:4] == [[50], [50, 51], [50, 51, 52], [50, 51, 52, 53]]
    assert forecast.buckets[0][0] == Origin.MATCH


def test_nothing_is_worth_checking_where_rows_are_dear() -> None:
    ids = [1, 2, 3, 1, 2, 4, 1, 2]
    assert _forecaster(ids, DEAR).forecast(ids, 8).worth == 0
    assert _forecaster(ids, FREE).forecast(ids, 8).worth > 0


def test_origins_name_who_knew_it() -> None:
    forecast = _forecaster([1, 2, 1], others=[2, 3, 4]).forecast([1, 2, 1], 10)
    forecast.plant(TokenTree(1), len(forecast))
    assert forecast.origins([2, 3, 9]) == [Origin.TEXT, Origin.SHARED]
    assert forecast.origins([8]) == []


def test_a_text_that_does_not_repeat_is_soon_left_alone_and_one_that_does_is_not() -> None:
    draw = random.Random(0)
    cost = StepCost(((1, 1.0), (8, 1.35)))
    calibration = Calibration()

    def run(next_token: list[int]) -> list[int]:
        contexts = Contexts(3)
        forecaster = Forecaster([Source(Origin.TEXT, contexts.followers)], 3, calibration, cost)
        ids, worth = [0], []
        for token in next_token:
            forecast = forecaster.forecast(ids, 8)
            worth.append(forecast.worth)
            forecaster.learn(forecast, [token])
            ids.append(token)
            contexts.extend(ids, len(ids) - 1)
        return worth

    noise = run([draw.randrange(200) for _ in range(600)])
    assert sum(noise[300:]) < 0.1 * 300
    repeats = run([index % 12 for index in range(600)])
    assert sum(repeats[300:]) > 5 * 300, "though the one before it had taught otherwise"


def test_calibration_tends_to_what_happens_and_forgets() -> None:
    calibration = Calibration()
    bucket = calibration.bucket(Origin.TEXT, 2, 0.5)
    assert calibration.chance(bucket, 0.5) == 0.5
    for passed in [True, False, False, False] * 100:
        calibration.test(bucket, passed=passed)
    assert calibration.chance(bucket, 0.5) == pytest.approx(0.25, abs=0.02)
    for _ in range(3000):
        calibration.test(bucket, passed=True)
    assert calibration.chance(bucket, 0.5) > 0.95


def test_trust_follows_one_sequence_and_comes_back() -> None:
    trust = Trust()
    for _ in range(50):
        trust.test(0.8, passed=False)
        trust.age()
    assert trust.factor < 0.35
    for _ in range(100):
        trust.age()
    assert trust.factor == pytest.approx(1.0, abs=0.05)
