"""One seed, one text, with lookahead and n-grams: the ids are those of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.lookahead_sizes import LookaheadSizes
from common.model.loader import Dtype
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from common.store.pool_config import PoolConfig
from common.store.pools import MemoryPools
from tests.inprocess import Collected, Pair, runner
from verifier.config import EngineConfig
from verifier.cost import StepCost
from verifier.methods.lookahead import LookaheadProposer
from verifier.methods.ngram import NgramProposer
from verifier.pool.config import LookaheadConfig
from verifier.proposer import Proposer

TOKENS = 24
CPU = StepCost(((1, 3.2), (8, 4.3), (64, 14.0)))
FREE = StepCost()
PROMPTS = (
    [7, 8, 9, 10, 7, 8, 9, 10, 7, 8],
    [1, 3, 500, 600, 700, 4],
    [2000 + index % 13 for index in range(40)],
    [11],
)
SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_p=0.9, seed=7),
    SamplingParams(temperature=0.6, repetition_penalty=1.2, seed=8),
)


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    chosen: Dtype = request.param
    return chosen


@pytest.fixture(scope="module")
def target(dtype: Dtype, demo_target: Path) -> Runner:
    return runner(demo_target, dtype)


@pytest.fixture(scope="module")
def plain(target: Runner) -> list[list[int]]:
    return _texts(target, None)


def _decode(
    target: Runner,
    proposer: Proposer | None,
    config: EngineConfig | None = None,
    **options: object,
) -> list[Collected]:
    """All prompts with all samplings, all at once."""
    pair = Pair.make(target, config=config)
    if proposer is not None:
        pair.engine.methods.single["tried"] = proposer
        pair.engine.limits = replace(pair.engine.limits, methods=("tried",))
    method = "tried" if proposer else "plain"
    heard = [
        pair.submit(prompt, TOKENS, sampling=sampling, method=method, **options)
        for prompt in PROMPTS
        for sampling in SAMPLINGS
    ]
    pair.run()
    return heard


def _texts(
    target: Runner,
    proposer: Proposer | None,
    config: EngineConfig | None = None,
    **options: object,
) -> list[list[int]]:
    return [one.ids for one in _decode(target, proposer, config, **options)]


@pytest.mark.parametrize("cost", [CPU, FREE], ids=["dear", "free"])
@pytest.mark.parametrize(
    "config",
    [LookaheadConfig(), LookaheadConfig(window_columns=4, ngram_tokens=4, guess_ngrams=3)],
    ids=["own sizes", "W4 N4 G3"],
)
def test_lookahead(
    target: Runner, plain: list[list[int]], config: LookaheadConfig, cost: StepCost
) -> None:
    assert _texts(target, LookaheadProposer(config, cost)) == plain


@pytest.mark.parametrize(
    "asked",
    [
        LookaheadSizes(window=1, ngram=2, guesses=1),
        LookaheadSizes(window=5, ngram=3, guesses=2),
        LookaheadSizes(window=64, ngram=8, guesses=64),
    ],
    ids=["least", "some", "most"],
)
def test_sizes_of_a_request(target: Runner, plain: list[list[int]], asked: LookaheadSizes) -> None:
    proposer = LookaheadProposer(LookaheadConfig(), FREE)
    assert _texts(target, proposer, lookahead=asked) == plain
    assert proposer.windows > 0


def test_lookahead_with_a_pool_that_knows_the_text(target: Runner, plain: list[list[int]]) -> None:
    pools = MemoryPools(PoolConfig())
    assert _texts(target, LookaheadProposer(LookaheadConfig(), CPU, shared=pools)) == plain
    again = _decode(target, LookaheadProposer(LookaheadConfig(), CPU, shared=pools))
    assert [one.ids for one in again] == plain
    assert sum(one.events[-1].counts.accepted_tokens for one in again) > 100


def test_lookahead_in_a_cache_that_is_too_small(
    dtype: Dtype, demo_target: Path, plain: list[list[int]]
) -> None:
    """Trees find no room, and sequences lose theirs half-way."""
    block = 16 * 2 * 2 * 32 * 12 * (2 if dtype == "bfloat16" else 4)
    tight = runner(demo_target, dtype, kv_bytes=12 * block)
    proposer = LookaheadProposer(LookaheadConfig(window_columns=3, ngram_tokens=4), FREE)
    assert _texts(tight, proposer, EngineConfig(max_batch_tokens=48)) == plain
    assert tight.pool.blocks.held == 0


def test_ngram(target: Runner, plain: list[list[int]]) -> None:
    assert _texts(target, NgramProposer(FREE, 24)) == plain
