"""Tenants beside each other in the engine: a flood of one is no wall before the others."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from common.errors import ResourceExhausted
from common.model.runner import Runner
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import VOCAB
from verifier.config import EngineConfig


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return runner(tiny_models.save("llama", tmp_path_factory.mktemp("llama")), "bfloat16")


@pytest.fixture(autouse=True)
def _nothing_left(target: Runner) -> Iterator[None]:
    yield
    target.pool.blocks.check()
    assert target.pool.blocks.held == 0


def _prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(length)]


def test_another_tenants_request_overtakes_a_flood(target: Runner) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=2))
    flood = [pair.submit(_prompt(8, seed), 10, cache_salt=b"flood") for seed in range(20)]
    for _ in range(5):
        pair.engine.step()
    late = pair.submit(_prompt(8, 99), 10, cache_salt=b"late")
    while not late.done:
        pair.engine.step()
    assert sum(one.done for one in flood) <= 4, "those that ran, and one that was first"
    pair.run()
    assert all(len(one.ids) == 10 for one in flood)


def test_prompts_of_a_flood_do_not_hold_up_anothers(target: Runner) -> None:
    """All are let in at once; the one long prompt after another of the flood is not read first."""
    pair = Pair.make(target, None, EngineConfig(max_batch_tokens=32))
    flood = [pair.submit(_prompt(160, seed), 2, cache_salt=b"flood") for seed in range(6)]
    pair.engine.step()
    late = pair.submit(_prompt(40, 99), 1, cache_salt=b"late")
    while not late.done:
        pair.engine.step()
    assert sum(one.done for one in flood) == 0
    pair.run()


def test_a_flood_cannot_take_all_places(target: Runner) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=4, max_waiting=12))
    heard = [pair.submit(_prompt(5, seed), 4, cache_salt=b"flood") for seed in range(14)]
    with pytest.raises(ResourceExhausted, match="this tenant are running or waiting"):
        pair.submit(_prompt(5, 98), 4, cache_salt=b"flood")
    heard.append(pair.submit(_prompt(5, 99), 4, cache_salt=b"late"))
    pair.run()
    assert all(len(one.ids) == 4 for one in heard)


def test_where_nobody_is_told_apart_all_places_are_everybodys(target: Runner) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=4, max_waiting=12))
    heard = [pair.submit(_prompt(5, seed), 4) for seed in range(16)]
    with pytest.raises(ResourceExhausted, match="all this verifier takes"):
        pair.submit(_prompt(5, 99), 4)
    pair.run()
    assert all(len(one.ids) == 4 for one in heard)
