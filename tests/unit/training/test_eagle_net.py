"""A head trained over a whole text at once is one that drafts token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.eagle.through_torch import TorchHead
from common.model.eagle.weights import EagleWeights
from common.model.keyed_head import Behind
from tests.unit.common.model.eagle.plain import Text, plainly
from tests.unit.training.eagle_heads import ids_of, made
from training import eagle
from training.eagle_net import EagleNet
from training.models import load_model

DEPTHS = 4


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return load_model(target, float32=True).requires_grad_(False)


def _otherwise(weights: EagleWeights, vocab: int) -> EagleWeights:
    """As some that others publish are."""
    size = weights.hidden
    noise = torch.Generator().manual_seed(7)
    return replace(
        weights,
        norm_before_residual=True,
        fc_bias=torch.randn(size, generator=noise),
        embeddings=torch.randn(vocab, size, generator=noise),
    )


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("vocab", [0, 100])
def test_all_drafts_at_once_are_those_drafted_one_by_one(
    vocab: int, published: bool, model: Any
) -> None:
    weights = made(model, vocab).weights()
    assert weights.heads > weights.kv_heads, "queries share keys"
    weights = _otherwise(weights, model.config.vocab_size) if published else weights
    texts = ids_of(9, seed=3, rows=2)
    features, _, embeddings = eagle.read(model, weights.taps, texts)
    with torch.no_grad():
        found = list(EagleNet(weights).depths(features, texts, embeddings, DEPTHS))
    for depth, logits in enumerate(found):
        assert logits.shape == (2, 8 - depth, vocab or len(embeddings))
    for line in range(2):
        for place in range(8):
            tokens = texts[line, 1:].tolist()
            text = Text(features[line, : place + 1], tokens[: place + 1], np.arange(place + 1))
            steps = [([0], [token]) for token in tokens[place + 1 : place + DEPTHS]]
            wanted = plainly(weights, [text], steps, [()], embeddings)
            for logits, (row,) in zip(found, wanted, strict=False):  # fewer at the text's end
                torch.testing.assert_close(logits[line, place], row, rtol=1e-4, atol=2e-5)


def test_the_head_that_serves_computes_what_was_trained(model: Any, tmp_path: Path) -> None:
    """Through the files, whose bfloat16 both begin with."""
    config, lm_head = model.config, model.get_output_embeddings().weight
    weights = made(model).weights()
    eagle_checkpoint.save(tmp_path, weights, lm_head=lm_head, config=config.to_dict())
    held = eagle_checkpoint.load(
        tmp_path,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        layers=config.num_hidden_layers,
        lm_head=lm_head,
    )
    net = eagle.load(tmp_path, model)
    text = ids_of(12, seed=4)
    features, _, embeddings = eagle.read(model, net.taps, text)
    trained = list(net.depths(features, text, embeddings, DEPTHS))
    layer = held.shape
    spare, width = layer.spare, 2 * held.head_size
    cache = torch.zeros(32 + spare, held.kv_heads, width)
    head = TorchHead(held, embeddings=embeddings, cache=cache, positions=64, dtype=torch.float32)
    for end in (1, 5, 8):
        tokens = text[0, 1 : end + 1].tolist()
        behind = Behind(features[0, :end], tokens, 0, np.arange(1, end + 1))
        draft = head.draft([behind])
        rows = [draft.logits]
        rows += [draft.further([0], [int(text[0, end + depth])]) for depth in range(1, DEPTHS)]
        for depth, row in enumerate(rows):
            torch.testing.assert_close(row[0], trained[depth][0, end - 1], rtol=1e-4, atol=2e-5)
    assert head.top(rows[0], 3)[0] == _likeliest(trained[0][0, 7], held.ids, 3)


def _likeliest(logits: Tensor, ids: Tensor | None, count: int) -> Sequence[Sequence[int]]:
    assert ids is not None
    return [ids[logits.topk(count).indices].tolist()]


def test_every_weight_is_learnt(model: Any) -> None:
    net, text = made(model), ids_of(12, seed=5)
    features, _, embeddings = eagle.read(model, net.taps, text)
    *_, last = net.depths(features, text, embeddings, 2)
    last.square().mean().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_weights_make_the_same_head_again(model: Any) -> None:
    net, text = made(model), ids_of(6, seed=6)
    again = EagleNet(net.weights())
    assert {*again.state_dict()} == {*net.state_dict()}
    features, _, embeddings = eagle.read(model, net.taps, text)
    one, same = (list(each.depths(features, text, embeddings, 2)) for each in (net, again))
    assert all(map(torch.equal, one, same))
