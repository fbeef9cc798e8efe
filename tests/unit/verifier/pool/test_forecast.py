"""Forecasts: what of them is planted, and whom they leave alone."""

from __future__ import annotations

import random

from common.model.tree import TokenTree
from common.ngrams import Calibration, Contexts
from verifier.cost import StepCost
from verifier.pool.forecast import Forecaster, Origin


def _forecaster(ids: list[int], cost: StepCost) -> Forecaster:
    text = Contexts(3)
    text.extend(ids, 0)
    return Forecaster([(Origin.TEXT, text)], 3, Calibration(), cost, 0)


def test_candidates_become_nodes() -> None:
    ids = [1, 2, 3, 1, 2, 4, 1, 2]
    forecaster = _forecaster(ids, StepCost())
    forecast = forecaster.forecast(ids, 8)
    tree = TokenTree(ids[-1])
    assert forecaster.plant(forecast, tree, 8) == forecast.worth
    assert len(tree) == 1 + forecast.worth
    for node in range(1, len(tree)):
        assert tree.ids[node] == forecast.tokens[node - 1]
        assert tree.parents[node] == forecast.parents[node - 1] + 1
    assert forecast.expected == sum(forecast.chances[: forecast.worth])


def test_fewer_are_planted_beside_others() -> None:
    ids, cost = [1, 2, 3, 1, 2, 4, 1, 2], StepCost(((1, 1.0), (4, 1.1), (64, 60.0)))
    forecaster = _forecaster(ids, cost)
    forecast = forecaster.forecast(ids, 8)
    tree = TokenTree(ids[-1])
    tree.add_path([7, 8, 9])
    assert forecaster.plant(forecast, tree, 8) < forecast.worth


def test_a_text_that_does_not_repeat_is_soon_left_alone_and_one_that_does_is_not() -> None:
    draw = random.Random(0)
    cost = StepCost(((1, 1.0), (8, 1.35)))
    calibration = Calibration()

    def run(next_token: list[int]) -> list[int]:
        contexts = Contexts(3)
        forecaster = Forecaster([(Origin.TEXT, contexts)], 3, calibration, cost, 0)
        ids, worth = [0], []
        for token in next_token:
            forecast = forecaster.forecast(ids, 8)
            worth.append(forecast.worth)
            forecaster.learn([token])
            ids.append(token)
            contexts.extend(ids, len(ids) - 1)
        return worth

    noise = run([draw.randrange(200) for _ in range(600)])
    assert sum(noise[300:]) < 0.1 * 300
    repeats = run([index % 12 for index in range(600)])
    assert sum(repeats[300:]) > 5 * 300, "though the one before it had taught otherwise"
