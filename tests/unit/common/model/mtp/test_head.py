"""Layers for multi-token prediction guess what `transformers` has them guess."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

from common.model.keyed_head import Behind
from common.model.mtp import head
from common.model.mtp.head import MtpHead
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import eagle_of, runner
from tests.unit.common.model.mtp import files

LENGTHS = (5, 30, 100)
WINDOW = 40


class Case(NamedTuple):
    """A model, and its layer, here and as `transformers` computes them."""

    target: Runner
    head: MtpHead
    their_target: Any
    theirs: Any


def _case(kind: str, directory: Path, **changes: Any) -> Case:
    files.write(kind, directory, **changes)
    if changes:
        tiny_models.split(directory, "model-00001-of-00001.safetensors")
    target = runner(directory, eagle=directory)
    made = eagle_of(directory, target)
    assert isinstance(made, MtpHead)
    their_target = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    their_target._keys_to_ignore_on_load_unexpected = [r"^mtp\.", rf"layers\.{files.LAYERS}\."]
    text = their_target.config
    text.num_mtp_layers = 1
    for name in files.LISTS:
        if getattr(text, name, None) and not getattr(text, f"mtp_{name}", None):
            setattr(text, f"mtp_{name}", getattr(text, name)[-1:])
    return Case(target, made, their_target.eval(), MtpModel.from_pretrained(their_target).eval())


def _seen(case: Case, ids: Seq[int]) -> Behind:
    """What is known of a text whose first half the head was shown before."""
    end = len(ids) - 1
    slots = case.target.pool.lease(end).slots[:end]
    half = end // 2
    first = case.target.forward([Segment(ids[:half], 0, slots, wanted=[])]).features
    rest = case.target.forward([Segment(ids[half:end], half, slots, wanted=[end - half - 1])])
    assert first is not None
    assert rest.features is not None
    case.head.write([Behind(first, ids[1 : half + 1], 0, slots)])
    return Behind(rest.features, ids[half + 1 :], half, slots)


@torch.inference_mode()
def _their_logits(case: Case, ids: Seq[int], tokens: Seq[int]) -> list[Tensor]:
    """Those behind a text, and behind each of some tokens after it."""
    found = case.their_target(torch.tensor([ids[:-1]]), output_hidden_states=True)
    states, after, logits = found.hidden_states[-1], [*ids[1:]], []
    for token in (*tokens, None):
        at = torch.arange(1, len(after) + 1)[None]
        left = case.theirs.forward_layer(0, states, at, None, input_ids=torch.tensor([after]))
        logits.append(case.theirs._project_to_logits(left)[0, -1])
        states, after = torch.cat((states, left[:, -1:]), dim=1), [*after, token]
    return logits


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert expected.std() > 0.1


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("glm4_moe", {}),
        ("glm4_moe_lite", {}),
        ("deepseek_v3", {}),
        ("mellum", {}),
        ("glm4_moe", {"tie_word_embeddings": True}),
    ],
)
def test_guesses_are_those_of_transformers(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Of several texts at once, depth by depth, and of two guesses behind one. Windows do not move
    with guesses. Once files have an index, and the output layer is the embeddings."""
    case = _case(kind, tmp_path, **changes)
    texts = [*map(tiny_models.text, LENGTHS)]
    seen = [_seen(case, text) for text in texts]
    expected = [_their_logits(case, text, (7, 8, 9)) for text in texts]
    draft = case.head.draft(seen)
    for row, logits in zip(draft.logits, expected, strict=True):
        _close(row, logits[0])
    rows = [*range(len(texts))]
    for depth, token in enumerate((7, 8), 1):
        found = draft.further(rows, [token] * len(rows))
        for row, logits, text in zip(found, expected, texts, strict=True):
            if case.head.layer.window is None or len(text) < WINDOW:
                _close(row, logits[depth])
    other = _their_logits(case, texts[1], (7, 8, 10, 3))
    found = draft.further([0, 1, 1], [9, 9, 10])
    for row, logits in zip(found, (expected[0], expected[1], other), strict=True):
        _close(row, logits[3])
    _close(draft.further([2], [3])[0], other[4])


def test_groups_count_what_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, told = _case("mellum", tmp_path), list[int]()
    texts = [_seen(case, tiny_models.text(length)) for length in (5, 100)]
    monkeypatch.setattr(head, "groups", lambda sizes, device: told.extend(sizes))
    case.head.groups(texts)
    assert told == [case.head.draft([text])._texts._held.nbytes for text in texts]
