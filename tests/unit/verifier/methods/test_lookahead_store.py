"""A store that dies and comes back while texts are made: no request fails, no token changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model.runner import Runner
from common.sampling_params import SamplingParams
from common.store.pool_config import PoolConfig
from common.store.pools import RedisPools
from tests.inprocess import Collected, Pair, runner
from tests.store_server import PROGRAMS, Server, until
from verifier.cost import StepCost
from verifier.methods.lookahead import LookaheadProposer
from verifier.pool.config import LookaheadConfig

TOKENS = 96
PROMPTS = ([7, 8, 9, 10, 7, 8, 9, 10], [1, 3, 500, 600, 700, 4], [11], list(range(900, 930)))


@pytest.fixture(scope="module")
def target(demo_target: Path) -> Runner:
    return runner(demo_target, "bfloat16")


def _submit(pair: Pair, method: str) -> list[Collected]:
    return [
        pair.submit(prompt, TOKENS, method=method, sampling=sampling)
        for prompt in PROMPTS
        for sampling in (SamplingParams(), SamplingParams(temperature=0.8, seed=3))
    ]


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_the_store_is_killed_and_restarted_under_load(
    program: str, target: Runner, tmp_path: Path
) -> None:
    found = PROGRAMS[program]
    if found is None:
        pytest.skip(f"{program}-server is not installed")
    pair = Pair.make(target)
    plain = _submit(pair, "plain")
    pair.run()
    server = Server(found, tmp_path)
    server.start()
    pools = RedisPools(server.url, "m", PoolConfig(flush_s=0.01))
    cost = StepCost(((1, 3.2), (8, 4.3), (64, 14.0)))
    proposer = LookaheadProposer(LookaheadConfig(), cost, shared=pools)
    pair.engine.methods.single["lookahead"] = proposer
    try:
        heard = _submit(pair, "lookahead")
        _steps(pair, 6)
        until(lambda: pools.counts.written)
        server.kill()
        _steps(pair, 6)
        until(lambda: pools.counts.away)
        server.start()
        _steps(pair, 6)
        until(lambda: not pools.counts.away)
        pair.run()
    finally:
        pools.close()
        server.kill()
    assert [one.ids for one in heard] == [one.ids for one in plain]
    assert all(one.done and one.events[-1].error is None for one in heard)


def _steps(pair: Pair, count: int) -> None:
    for _ in range(count):
        assert pair.engine.step()
