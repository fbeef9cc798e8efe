"""Sampled text follows the model's softmax, with and without speculation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from paceline.v1 import drafter_pb2
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM

from common.model.runner import Runner
from common.sampling_params import SamplingParams
from drafter.convert import response
from drafter.reply import Reply
from tests import tiny_models
from tests.inprocess import Pair, runner
from verifier.branches import Received

VOCAB = 40
PROMPT = [token % VOCAB for token in [5, 9, 33, 7, 120, 64]]
SEEDS = 2400
TEMPERATURE = 1.3
BIAS = dict.fromkeys(range(0, VOCAB, 3), -101 * TEMPERATURE)
"""Of tokens that float32 has a chance for behind some texts, and none behind others."""
FALSE_ALARM = 1e-4
"""Chance that a sound sampler fails one test; seeds are fixed, so it fails always or never.
With 3000 draws a distribution that is off by 0.06 in total variation is caught with more than
99 % probability."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"), vocab_size=VOCAB)


def _expected(directory: Path, bias: Mapping[int, float]) -> np.ndarray:
    """Probability of each pair of next tokens, by transformers. # [V, V]"""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    more = torch.tensor([bias.get(token, 0.0) for token in range(VOCAB)])
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0, -1] + more
        first = torch.softmax(logits / TEMPERATURE, -1)
        follow = torch.tensor([[*PROMPT, token] for token in range(VOCAB)])
        second = torch.softmax((model(follow).logits[:, -1] + more) / TEMPERATURE, -1)
    return (first[:, None] * second).double().numpy()


def _over_the_wire(reply: Reply) -> list[Reply]:
    """What a verifier makes of a reply that was sent as a message."""
    if reply.round is None:
        return [reply]
    message = drafter_pb2.DraftResponse.FromString(response([reply]).SerializeToString())
    outcome = reply.round
    branch = Received(message.branches[0], VOCAB, 0.0).find(outcome.accepted, outcome.ids[-1])
    assert branch is not None
    return [reply._replace(ids=branch.ids, drawn=branch.drawn)]


@pytest.mark.parametrize(
    ("drafted", "acceptance", "bias"),
    [(False, "coupled", {}), (True, "coupled", {}), (True, "rejection", BIAS)],
)
def test_pairs_of_tokens_pass_chi_square(
    drafted: bool, acceptance: str, bias: dict[int, float], directory: Path, tmp_path: Path
) -> None:
    expected = _expected(directory, bias)
    target: Runner = runner(directory)
    other = tiny_models.save("llama", tmp_path, vocab_size=VOCAB, seed=4)
    pair = Pair.make(target, runner(other) if drafted else None, fault=_over_the_wire)
    seen: Counter[tuple[int, ...]] = Counter()
    checked = 0
    for start in range(0, SEEDS, 100):
        heard = [
            pair.submit(
                PROMPT,
                3,
                sampling=SamplingParams(temperature=TEMPERATURE, seed=seed, logit_bias=bias),
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
