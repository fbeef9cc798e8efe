"""A head trained over a whole text at once is one that drafts token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.eagle.head import Behind
from common.model.eagle.through_torch import TorchHead
from common.model.eagle.weights import EagleWeights
from tests.unit.training.eagle_heads import ids_of, made
from training import eagle
from training.eagle_net import EagleNet
from training.models import load_model

DEPTHS = 4


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return load_model(target, float32=True).requires_grad_(False)


class Plain:
    """The draft behind one position, a row at a time, each with the keys of all before it.

    Args:
        weights: Of the head.
        embeddings: The target's. # [V, d]
        features: Of the text up to the position. # [n, taps * t]
        tokens: The token after each. # [n]
    """

    def __init__(
        self, weights: EagleWeights, embeddings: Tensor, features: Tensor, tokens: Tensor
    ) -> None:
        self._w = weights
        self._embeddings = embeddings if weights.embeddings is None else weights.embeddings
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        for feature, token in zip(features, tokens, strict=True):
            x = weights.fc @ feature
            self._row(x if weights.fc_bias is None else x + weights.fc_bias, int(token))

    def follow(self, token: int) -> None:
        """Goes on from what the last row made of itself."""
        self._row(self._out, token)

    def _row(self, x: Tensor, token: int) -> None:
        w, position = self._w, len(self._keys)
        normed = self._norm(x) * w.hidden_norm
        read = torch.cat((self._norm(self._embeddings[token]) * w.input_norm, normed))
        self._keys.append(self._turn((w.k @ read).view(w.kv_heads, -1), position))
        self._values.append((w.v @ read).view(w.kv_heads, -1))
        attended = []
        for number, query in enumerate(self._turn((w.q @ read).view(w.heads, -1), position)):
            shared = number // (w.heads // w.kv_heads)
            scores = torch.stack([query @ key[shared] for key in self._keys])
            chances = (scores / w.head_size**0.5).softmax(0)
            values = torch.stack([value[shared] for value in self._values])
            attended.append(chances @ values)
        x = (normed if w.norm_before_residual else x) + w.o @ torch.cat(attended)
        inner = self._norm(x) * w.mlp_norm
        self._out = x + w.down @ (F.silu(w.gate @ inner) * (w.up @ inner))
        self.logits = w.lm_head @ (self._norm(self._out) * w.norm)

    def _norm(self, x: Tensor) -> Tensor:
        return x / (x.square().mean() + self._w.epsilon).sqrt()

    def _turn(self, heads: Tensor, position: int) -> Tensor:
        angles = (position * self._w.rotary.frequencies).repeat(2)
        half = heads.shape[1] // 2
        swapped = torch.cat((-heads[:, half:], heads[:, :half]), dim=1)
        return heads * angles.cos() + swapped * angles.sin()


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
    for line in range(2):
        for place in range(8):
            tokens = texts[line, 1 : place + 2]
            draft = Plain(weights, embeddings, features[line, : place + 1], tokens)
            for depth, logits in enumerate(found):
                assert logits.shape == (2, 8 - depth, vocab or len(embeddings))
                if place + depth >= 8:
                    break
                if depth:
                    draft.follow(int(texts[line, place + 1 + depth]))
                torch.testing.assert_close(logits[line, place], draft.logits, rtol=1e-4, atol=2e-5)


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
    layer = TorchHead.layer(held)
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
