"""Three verifiers and four drafters of different speeds and distances, as real processes.

What they do takes the time it is told to take, so that a small machine runs all of them; what is
asserted is waited for, never timed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

import grpc.aio
import pytest
from paceline.v1 import worker_pb2, worker_pb2_grpc

from bench.assignment import search, tokens_per_s
from bench.simulated.traffic import Traffic, WatchedFleet
from gateway.autoscale import Pool
from tests import tiny_models
from tests.e2e.fleet.fleet import (
    WORKERS,
    Running,
    by_number,
    decided,
    drafter_spec,
    gateway,
    running,
    until,
    verifier_spec,
)

pytestmark = pytest.mark.timeout(600)

SESSIONS = 6
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("fleet")
    model = tiny_models.save("llama", directory / "model")
    with running(directory, model) as started:
        yield started


async def drain(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        await worker_pb2_grpc.WorkerStub(channel).Drain(worker_pb2.DrainRequest())


def traffic(generations, clients: int, draft_tokens: int = 0) -> Traffic:
    return Traffic(
        generations,
        clients=clients,
        vocab_size=tiny_models.VOCAB,
        max_tokens=MAX_TOKENS,
        draft_tokens=draft_tokens,
    )


async def test_placement_converges_to_within_ten_percent_of_the_best(workers: Running) -> None:
    """The best is found by a search that knows the true costs; placement has to measure them.

    What is compared is where sessions would go by what was learned so far, trials aside, and how
    fast the rate model says that they would be there: nothing is timed.
    """
    best = tokens_per_s(WORKERS, search(WORKERS, SESSIONS))
    spread = Counter(WORKERS.places[n * 5 % 12] for n in range(SESSIONS))
    assert tokens_per_s(WORKERS, spread) < 0.8 * best, "it matters who works with whom"

    def settled() -> bool:
        """Whether it was good enough whenever it was looked at of late."""
        found = by_number(decided(each.fleet, SESSIONS), workers)
        looks.append(tokens_per_s(WORKERS, found) >= 0.9 * best)
        return len(looks) == looks.maxlen and all(looks)

    def measured() -> int:
        verifiers, _ = each.fleet.candidates()
        return sum(len(verifier.load.pairs) for verifier in verifiers if verifier.load)

    looks: deque[bool] = deque(maxlen=20)
    async with gateway(workers.verifiers, workers.drafters) as each:
        async with traffic(each.generations, SESSIONS) as asking:
            await until(lambda: settled() and measured() >= 8)
            await asking.finish()
        assert asking.failures == []


async def test_more_load_wants_more_verifiers(workers: Running) -> None:
    def desired(tier: str) -> int:
        return sum(pool.desired for pool in each.fleet.pools() if pool.tier == tier)

    async with gateway(workers.verifiers, workers.drafters) as each:
        idle = desired("verifier")
        async with traffic(each.generations, 30) as asking:  # of which 24 run
            await until(lambda: desired("verifier") > max(idle, 3))
            assert asking.failures == []
        pools = {(pool.tier, pool.pool): pool.ready for pool in each.fleet.pools()}
        assert pools == {("verifier", "large"): 3, ("drafter", "small"): 4}


async def test_adding_and_draining_workers_loses_no_request(workers: Running) -> None:
    processes = workers.processes
    async with gateway(workers.verifiers, workers.drafters) as each:
        fleet = each.fleet

        def used(address: str) -> bool:
            return any(address in pair and n > 0 for pair, n in fleet.active.items())

        async with traffic(each.generations, SESSIONS) as asking:
            await until(lambda: asking.finished >= SESSIONS)
            # One more of each tier; the new verifier is used.
            more = drafter_spec(0, workers.model), verifier_spec(0, workers.model, workers.drafters)
            named = [replace(spec, name=f"added {spec.tier}") for spec in more]
            added = await asyncio.to_thread(processes.start, *named)
            fleet.update("drafter", [*workers.drafters, added[0]])
            fleet.update("verifier", [*workers.verifiers, added[1]])
            await until(lambda: used(added[1]))
            # Both go again, though sessions are on them.
            await drain(added[1])
            await drain(added[0])
            for spec in named:
                assert await asyncio.to_thread(processes.ended, spec.name) == 0
            fleet.update("drafter", workers.drafters)
            fleet.update("verifier", workers.verifiers)
            before = asking.finished
            await until(lambda: asking.finished >= before + SESSIONS)
            await asking.finish()
        assert asking.failures == []


async def test_better_drafts_want_more_drafters(workers: Running) -> None:
    """Of two drafters as slow as each other one is never right, and the other always is."""
    alike = replace(drafter_spec(0, workers.model), step_s=0.040)
    wrong = replace(alike, name="wrong", pool="wrong", acceptance=0.0)
    right = replace(alike, name="right", pool="right", acceptance=1.0)
    started = await asyncio.to_thread(workers.processes.start, wrong, right)
    await becomes(1, "wrong", started[0], workers)
    await becomes(2, "right", started[1], workers)


async def becomes(desired: int, pool: str, drafter: str, workers: Running) -> None:
    """Waits until so many drafters are wanted for four sessions of one verifier."""
    wanted = Pool(tier="drafter", pool=pool, ready=1, desired=desired)
    async with gateway(workers.verifiers[:1], [drafter]) as each:
        async with traffic(each.generations, 4, draft_tokens=2) as asking:
            # Before, it is taken to be as good as any other drafter of its model.
            await until(lambda: drafted(each.fleet, drafter) >= 32)
            await until(lambda: wanted in each.fleet.pools())
        assert asking.failures == []


def drafted(fleet: WatchedFleet, drafter: str) -> int:
    """Tokens of a drafter that were checked."""
    verifiers, _ = fleet.candidates()
    loads = [verifier.load for verifier in verifiers if verifier.load is not None]
    return sum(load.pairs[drafter].drafted_tokens for load in loads if drafter in load.pairs)
