"""One seed, one text with rounded weights: a drafter's change no text, a target has its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from common.model.quantized import Quantize
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from tests.inprocess import Pair, eagle_of, heads, runner

TOKENS = 20
CASES = 6
VOCAB = 4096


@pytest.fixture(scope="module")
def rounded_draft(demo_draft: Path) -> Runner:
    return runner(demo_draft, "bfloat16", quantize="int8")


def _case(index: int) -> tuple[list[int], SamplingParams]:
    draw = random.Random(index)
    prompt = [draw.randrange(5, VOCAB) for _ in range(draw.choice([1, 14, 60]))]
    if index % 2:
        return prompt, SamplingParams(temperature=0.8, top_p=0.9, seed=index)
    return prompt, SamplingParams()


def _texts(pair: Pair, **options: object) -> list[list[int]]:
    return pair.generate_all(map(_case, range(CASES)), TOKENS, **options)


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
def test_no_draft_changes_the_text(
    quantize: Quantize,
    demo_target: Path,
    demo_medusa: Path,
    demo_eagle: Path,
    rounded_draft: Runner,
) -> None:
    target = runner(demo_target, "bfloat16", quantize=quantize)
    alone = [
        Pair.make(target).generate(prompt, TOKENS, sampling=sampling)
        for prompt, sampling in map(_case, range(CASES))
    ]
    assert _texts(Pair.make(target)) == alone
    assert _texts(Pair.make(target, rounded_draft), draft_tokens=4) == alone
    trained = heads(demo_medusa, target)
    assert _texts(Pair.make(target, heads=trained), method="medusa") == alone
    tapped = runner(demo_target, "bfloat16", quantize=quantize, eagle=demo_eagle)
    pair = Pair.make(tapped, eagle=eagle_of(demo_eagle, tapped))
    assert _texts(pair, method="eagle") == alone
    target.pool.blocks.check()
