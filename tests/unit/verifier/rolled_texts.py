"""Texts whose passes may be one call: requests of every kind, beside each other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from common.model.runner import Runner
from common.sampling_params import SamplingParams
from tests.inprocess import Collected, Pair, runner
from tests.tiny_models import VOCAB

SELDOM_S = 3600.0
"""Between two messages: calls are as long as they may be."""

WAYS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=1.1, top_p=0.9, top_k=40, seed=6),
    SamplingParams(temperature=0.0, logit_bias={7: 2.0}),
    SamplingParams(temperature=0.8, repetition_penalty=1.3, seed=8),
)


def begin(pair: Pair, seed: int, **options: object) -> list[Collected]:
    """Some requests, each with a way, a length and stops of its own."""
    draw = random.Random(seed)
    heard = []
    for _ in range(draw.randint(2, 7)):
        prompt = [draw.randrange(3, VOCAB) for _ in range(draw.randint(1, 40))]
        prompt *= draw.choice([1, 3])  # n-grams have something to find
        stops = frozenset(draw.randrange(VOCAB) for _ in range(draw.choice([0, 0, 1, 40])))
        asked: dict[str, object] = {"sampling": draw.choice(WAYS), "stop_ids": stops, **options}
        heard.append(pair.submit(prompt, draw.randint(1, 40), **asked))
    return heard


def texts(pair: Pair, seed: int, **options: object) -> list[list[int]]:
    """What becomes of them."""
    heard = begin(pair, seed, **options)
    pair.run()
    return [each.ids for each in heard]


def rolling_runner(directory: Path) -> Runner:
    """A model that makes several passes in one call; skips where none does."""
    found = runner(directory, "bfloat16")
    if not found.rolls:
        pytest.skip("one pass a call")
    return found
