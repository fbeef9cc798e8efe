"""Tenants beside each other in the engine: a flood of one is no wall before the others."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ResourceExhausted
from common.model.runner import Runner
from tests.inprocess import Pair
from tests.unit.verifier.texts import prompt_of
from verifier.config import EngineConfig
from verifier.sequence import Sequence

pytestmark = pytest.mark.usefixtures("nothing_left")

LENGTHS = (3, 18, 40, 70)
"""Of prompts, by their seed."""
TOKENS = 40


@pytest.fixture(scope="module")
def texts(target: Runner) -> list[list[int]]:
    """What each prompt's text is, alone."""
    alone = Pair.make(target)
    return [alone.generate(prompt_of(LENGTHS[seed], seed), TOKENS) for seed in range(len(LENGTHS))]


def test_another_tenants_request_overtakes_a_flood(target: Runner) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=2))
    flood = [pair.submit(prompt_of(8, seed), 10, cache_salt=b"flood") for seed in range(20)]
    for _ in range(5):
        pair.engine.step()
    late = pair.submit(prompt_of(8, 99), 10, cache_salt=b"late")
    while not late.done:
        pair.engine.step()
    assert sum(one.done for one in flood) <= 4, "those that ran, and one that was first"
    pair.run()
    assert all(len(one.ids) == 10 for one in flood)


def test_prompts_of_a_flood_do_not_hold_up_anothers(target: Runner) -> None:
    """All are let in at once; the one long prompt after another of the flood is not read first."""
    pair = Pair.make(target, None, EngineConfig(max_batch_tokens=32))
    flood = [pair.submit(prompt_of(160, seed), 2, cache_salt=b"flood") for seed in range(6)]
    pair.engine.step()
    late = pair.submit(prompt_of(40, 99), 1, cache_salt=b"late")
    while not late.done:
        pair.engine.step()
    assert sum(one.done for one in flood) == 0
    pair.run()


def test_a_short_prompt_does_not_wait_for_all_of_a_long_one(target: Runner) -> None:
    """Of whom they are makes no difference; neither does the long one wait for all short ones."""
    pair = Pair.make(target, None, EngineConfig(max_batch_tokens=32))
    long = pair.submit(prompt_of(320, 1), 1)
    pair.engine.step()
    short = pair.submit(prompt_of(5, 2), 1)
    pair.engine.step()
    assert short.done
    for seed in range(3, 50):
        pair.submit(prompt_of(24, seed), 1)
        pair.engine.step()
        if long.done:
            break
    assert long.done
    assert seed < 3 + 320 / 8, "a quarter of each step is its own"
    pair.run()


def test_a_flood_cannot_take_all_places(target: Runner) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=4, max_waiting=12))
    heard = [pair.submit(prompt_of(5, seed), 4, cache_salt=b"flood") for seed in range(14)]
    with pytest.raises(ResourceExhausted, match="this tenant are running or waiting"):
        pair.submit(prompt_of(5, 98), 4, cache_salt=b"flood")
    heard.append(pair.submit(prompt_of(5, 99), 4, cache_salt=b"late"))
    pair.run()
    assert all(len(one.ids) == 4 for one in heard)


def test_where_nobody_is_told_apart_all_places_are_everybodys(target: Runner) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=4, max_waiting=12))
    heard = [pair.submit(prompt_of(5, seed), 4) for seed in range(16)]
    with pytest.raises(ResourceExhausted, match="all this verifier takes"):
        pair.submit(prompt_of(5, 99), 4)
    pair.run()
    assert all(len(one.ids) == 4 for one in heard)


def test_a_tenant_of_which_nothing_runs_takes_the_place_of_anothers_youngest(
    target: Runner,
) -> None:
    """However long those of the other would run on; who has something running waits."""
    pair = Pair.make(target, None, EngineConfig(max_running=3))
    flood = [pair.submit(prompt_of(20, seed), 200, cache_salt=b"flood") for seed in range(3)]
    pair.engine.step()
    running = pair.engine._scheduler.running
    oldest, *_, youngest = running
    late = [pair.submit(prompt_of(8, 50 + seed), 30, cache_salt=b"late") for seed in range(2)]
    pair.engine.step()
    assert [each.tenant for each in running] == [b"flood", b"flood", b"late"]
    assert youngest not in running
    for salt in (b"", b"third"):
        pair.submit(prompt_of(8, 60), 5, cache_salt=salt)
        pair.engine.step()
    assert [each.tenant for each in running] == [b"flood", b"late", b""]
    assert running[0] is oldest
    assert pair.engine.preemptions == 2, "three tenants have one each: the fourth waits"
    pair.run()
    assert pair.engine.preemptions == 2
    assert [len(one.ids) for one in (*flood, *late)] == [200] * 3 + [30] * 2


def test_a_tenant_of_which_nothing_runs_takes_cache_of_another(tight: Runner) -> None:
    """Three texts fill it, so that places are free and room is not."""
    pair = Pair.make(tight)
    flood = [pair.submit(prompt_of(90, seed), 60, cache_salt=b"flood") for seed in range(3)]
    for _ in range(20):
        pair.engine.step()
    before = pair.engine.preemptions
    late = pair.submit(prompt_of(40, 99), 20, cache_salt=b"late")
    while not late.done:
        pair.engine.step()
    assert not any(one.done for one in flood)
    assert pair.engine.preemptions - before <= 2, "it is in nobody's way, nor given way to"
    pair.run()
    alone = Pair.make(target=tight)
    assert [one.ids for one in flood] == [alone.generate(prompt_of(90, s), 60) for s in range(3)]


def test_a_prompt_for_which_one_place_is_too_little_displaces_nobody(tight: Runner) -> None:
    pair = Pair.make(tight)
    flood = [pair.submit(prompt_of(60, seed), 10, cache_salt=b"flood") for seed in range(4)]
    pair.engine.step()
    late = pair.submit(prompt_of(200, 99), 5, cache_salt=b"late")
    pair.engine.step()
    assert pair.engine.preemptions == 0
    pair.run()
    assert len(late.ids) == 5
    assert all(len(one.ids) == 10 for one in flood)


def test_what_texts_have_in_common_makes_no_room(tight: Runner) -> None:
    """Four hold eleven blocks together and one each, so that one more place gives one block."""
    pair, common = Pair.make(tight), prompt_of(176, 0)
    flood = [pair.submit([*common, *prompt_of(8, 1)], 7, cache_salt=b"flood")]
    pair.engine.step()
    flood += [pair.submit([*common, *prompt_of(8, s)], 7, cache_salt=b"flood") for s in (2, 3, 4)]
    pair.engine.step()
    assert tight.pool.blocks.held == 15
    late = pair.submit(prompt_of(100, 99), 5, cache_salt=b"late")
    pair.engine.step()
    assert pair.engine.preemptions == 0
    pair.run()
    assert len(late.ids) == 5
    assert all(len(one.ids) == 7 for one in flood)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), roomy=st.booleans())
def test_whoever_gives_way_to_whom_texts_stay_what_they_are(
    seed: int, roomy: bool, target: Runner, tight: Runner, twin: Runner, texts: list[list[int]]
) -> None:
    """Each comes to its end, and places change hands no more often than tenants come and go."""
    draw = random.Random(seed)
    config = EngineConfig(max_running=draw.randint(1, 5), max_batch_tokens=draw.choice([5, 24]))
    pair = Pair.make(target if roomy else tight, draw.choice([None, twin]), config)
    scheduler = pair.engine._scheduler
    preempt, crossed = scheduler._preempt, 0

    def watched(victim: Sequence) -> None:
        nonlocal crossed
        tenants = Counter(each.tenant for each in scheduler.running)
        first = scheduler.waiting.first()
        if roomy:
            assert first is not None
            assert tenants[first.tenant] == 0
            assert tenants[victim.tenant] == max(tenants.values()) > 1
        assert len(scheduler.running) == 1 or victim is not scheduler.running[0]
        crossed += 1
        preempt(victim)

    scheduler._preempt = watched  # type: ignore[method-assign]
    heard, tenants = [], [b"", b"a", b"b", b"c"]
    for _ in range(60):
        match draw.choice(["come", "step", "step", "cancel"]):
            case "come":
                prompt, count = draw.randrange(len(texts)), draw.randint(1, TOKENS)
                tenant = draw.choice(tenants[: draw.randint(1, 4)])
                one = pair.submit(prompt_of(LENGTHS[prompt], prompt), count, cache_salt=tenant)
                heard.append((one, texts[prompt][:count]))
            case "cancel" if heard and draw.random() < 0.3:
                pair.engine.cancel(draw.choice(heard)[0].ticket)
            case _:
                pair.engine.step()
    pair.run()
    for one, expected in heard:
        assert one.ids == expected[: len(one.ids)]
        assert one.ids == expected or not one.done, "it was cancelled"
    assert crossed == pair.engine.preemptions
    if roomy:
        assert crossed <= len(heard) + len(tenants)
