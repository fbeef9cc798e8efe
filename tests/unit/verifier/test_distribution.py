"""Sampled text follows the model's softmax, with and without speculation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM

from common.model.runner import Runner
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, runner

PROMPT = [5, 9, 33, 7, 120, 64]
SEEDS = 3000
TEMPERATURE = 1.3
FALSE_ALARM = 1e-4
"""Chance that a sound sampler fails one test; seeds are fixed, so it fails always or never.
With 3000 draws a distribution that is off by 0.06 in total variation is caught with more than
99 % probability."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"), vocab_size=40)


@pytest.fixture(scope="module")
def expected(directory: Path) -> np.ndarray:
    """Probability of each pair of next tokens, by transformers. # [V, V]"""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    prompt = [token % 40 for token in PROMPT]
    with torch.inference_mode():
        first = torch.softmax(model(torch.tensor([prompt])).logits[0, -1] / TEMPERATURE, -1)
        follow = torch.tensor([[*prompt, token] for token in range(40)])
        second = torch.softmax(model(follow).logits[:, -1] / TEMPERATURE, -1)
    return (first[:, None] * second).double().numpy()


@pytest.mark.parametrize(
    ("drafted", "acceptance"), [(False, "coupled"), (True, "coupled"), (True, "rejection")]
)
def test_pairs_of_tokens_pass_chi_square(
    drafted: bool, acceptance: str, directory: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    target: Runner = runner(directory)
    other = tiny_models.save("llama", tmp_path, vocab_size=40, seed=4)
    pair = Pair.make(target, runner(other) if drafted else None)
    prompt = [token % 40 for token in PROMPT]
    seen: Counter[tuple[int, ...]] = Counter()
    checked = 0
    for start in range(0, SEEDS, 100):
        heard = [
            pair.submit(
                prompt,
                3,
                sampling=SamplingParams(temperature=TEMPERATURE, seed=seed),
                acceptance=acceptance,
                draft_tokens=2,
            )
            for seed in range(start, start + 100)
        ]
        pair.run()
        seen.update(tuple(one.ids[:2]) for one in heard)
        checked += sum(one.events[-1].counts.drafted_tokens for one in heard)
    assert (checked > 0) == drafted
    observed = np.zeros_like(expected)
    for (first, second), count in seen.items():
        observed[first, second] = count
    flat = observed.reshape(-1)
    wanted = expected.reshape(-1) / expected.sum() * SEEDS
    common = wanted >= 8
    groups = [*flat[common], flat[~common].sum()], [*wanted[common], wanted[~common].sum()]
    assert chisquare(*groups).pvalue > FALSE_ALARM
