"""What heads start from, and the targets that none can be made for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidArgument, ModelError
from common.model.eagle import checkpoint as eagle_checkpoint
from tests import tiny_models
from tests.unit.training.eagle_heads import ids_of
from training import eagle, eagle_start
from training.eagle_net import EagleNet
from training.eagle_start import EagleShape, default_taps, frequent
from training.models import load_model
from training.output import OutputLayer


@given(st.lists(st.lists(st.integers(0, 29), max_size=40), max_size=4), st.integers(0, 40))
def test_frequent_tokens_are_the_first_by_count_then_id(texts: list[list[int]], count: int) -> None:
    counts = Counter(token for text in texts for token in text)
    order = sorted(range(30), key=lambda token: (-counts[token], token))
    found, share = frequent((torch.tensor(text, dtype=torch.int32) for text in texts), count, 30)
    if 0 < count < 30:
        assert found is not None
        assert found.tolist() == sorted(order[:count])
        assert share * counts.total() == pytest.approx(
            sum(counts[token] for token in found.tolist())
        )
    else:
        assert (found, share) == (None, 1)


@pytest.mark.parametrize("layers", range(1, 40))
def test_default_taps_are_layers_that_rise(layers: int) -> None:
    taps = default_taps(layers)
    assert 1 <= len(taps) <= 3
    assert sorted(set(taps)) == list(taps)
    assert 0 <= taps[0] <= taps[-1] < layers
    if layers > 6:
        assert taps == (2, layers // 2, layers - 3), "the authors'"


@pytest.mark.parametrize("kind", ["llama", "qwen3", "olmo2", "gemma2", "granite", "mixtral"])
def test_a_fresh_head_has_the_targets_last_norm_and_output(kind: str, tmp_path: Path) -> None:
    """So that of a last state it would make what the target does; and it can be saved."""
    model = load_model(tiny_models.save(kind, tmp_path / "model"), float32=True)
    eagle_start.check(model, tmp_path, EagleShape())
    weights = eagle_start.start(model, EagleShape(), None, seed=0)
    x = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        normed = x / (x.square().mean(-1, keepdim=True) + weights.epsilon).sqrt() * weights.norm
        output = OutputLayer.of(model)
        wanted = output(model.base_model.norm(x))
        found = normed @ weights.lm_head.T
        if output.softcap is not None:
            found = torch.tanh(found / output.softcap) * output.softcap
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    lm_head, config = model.get_output_embeddings().weight, model.config.to_dict()
    eagle_checkpoint.save(tmp_path / "head", weights, lm_head=lm_head, config=config)
    net = eagle.load(tmp_path / "head", model)
    text = ids_of(5, seed=2, vocab=tiny_models.VOCAB)
    features, _, embeddings = eagle.read(model, net.taps, text)
    (logits,) = net.depths(features, text, embeddings, 1)
    assert logits.isfinite().all()


def test_matrices_are_the_seeds(tmp_path: Path) -> None:
    model = load_model(tiny_models.save("llama", tmp_path / "model"))
    one, same, other = (
        EagleNet(eagle_start.start(model, EagleShape(), None, seed=seed)).q for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("gpt2", r"model/config\.json: num_key_value_heads: missing"),
        ("phi", r"model/config\.json: rms_norm_eps: missing"),
        ("gemma3_text", r"model/config\.json: rope_parameters: no one base: an EAGLE head turns"),
    ],
)
def test_a_target_of_another_kind_is_refused(kind: str, problem: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path / "model")
    with pytest.raises(ModelError, match=problem):
        eagle_start.check(load_model(directory), directory, EagleShape())


def test_rotary_embeddings_that_are_not_known_are_refused(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path / "model")
    model = load_model(directory)
    model.config.rope_parameters = {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}
    with pytest.raises(ModelError, match=r"config\.json: rope_parameters: .*of type dynamic"):
        eagle_start.check(model, directory, EagleShape())
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    for factor, problem in ((None, "cannot be used: TypeError"), (0, "out of range")):
        model.config.rope_parameters = {"rope_theta": 1e4, "factor": factor, **yarn}
        with pytest.raises(ModelError, match=rf"config\.json: rope_parameters: {problem}"):
            eagle_start.check(model, directory, EagleShape())


def test_a_target_without_a_last_norm_is_refused(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path / "model")
    model = load_model(directory)
    del model.base_model.norm
    with pytest.raises(ModelError, match="norm of its target's output, and finds none"):
        eagle_start.check(model, directory, EagleShape())


def test_layers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path / "model")
    model = load_model(directory)
    eagle_start.check(model, directory, EagleShape(taps=(0, 1)))
    with pytest.raises(InvalidArgument, match="2, but the target's layers are 0 to 1"):
        eagle_start.check(model, directory, EagleShape(taps=(0, 2)))
