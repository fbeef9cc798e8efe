"""Assistants guess what `transformers` has them guess, behind any number of texts."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from common.model.assistant.head import AssistantHead, Seen
from common.model.drafting_head import DraftingHead
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import eagle_of, runner
from tests.tiny_models import LARGE_GEMMA4
from tests.unit.common.model.assistant import files

IDS = 200  # which clusters of one size have
LENGTHS = (5, 30, 100)
"""Of texts, one longer than the window, which is 40."""


class Case(NamedTuple):
    """A target with an assistant, here and as `transformers` computes them."""

    target: Runner
    head: DraftingHead[Any]
    their_target: Any
    theirs: Any


def _case(folder: Path, *, kind: str = files.TARGET, ordered: bool = False, **changes: Any) -> Case:
    directory = folder / "target"
    changes = {"vocab_size": IDS, **changes}
    if kind == files.TARGET:
        changes["vocab_size_per_layer_input"] = IDS
    their_target = tiny_models.stirred(kind, directory, **changes)
    path = files.write(folder / "assistant", directory, ordered=ordered)
    theirs = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    target = runner(directory)
    return Case(target, eagle_of(path, target), their_target.eval(), theirs.eval())


def _text(length: int) -> list[int]:
    return torch.randint(
        3, IDS, (length,), generator=torch.Generator().manual_seed(length)
    ).tolist()


def _seen(target: Runner, ids: Seq[int]) -> Seen:
    """What a target that was shown all but the last token knows of a text."""
    end = len(ids) - 1
    slots = target.pool.lease(end).slots[:end]
    half = end // 2
    target.forward([Segment(ids[:half], 0, slots, wanted=[half - 1])])
    found = target.forward([Segment(ids[half:end], half, slots, wanted=[end - half - 1])])
    return Seen(found.states[0], ids[-1], slots)


@torch.inference_mode()
def _their_logits(case: Case, ids: Seq[int], tokens: Seq[int]) -> list[Tensor]:
    """Those behind a text, and behind each of some tokens after it."""
    target, end = case.their_target, len(ids) - 1
    options = {"output_hidden_states": True, "return_shared_kv_states": True}
    out = target(torch.tensor([ids[:-1]]), **options)
    keys = out.shared_kv_states or {
        kind: (layer.keys, layer.values)
        for kind, layer in zip(target.config.layer_types, out.past_key_values.layers, strict=True)
    }
    state, logits = out.hidden_states[-1][:, -1:], []
    for token in (ids[-1], *tokens):
        embedded = target.get_input_embeddings()(torch.tensor([[token]]))
        said = case.theirs(
            inputs_embeds=torch.cat((embedded, state), dim=-1),
            position_ids=torch.tensor([[end]]),
            shared_kv_states=dict(keys),
            use_cache=False,
        )
        state = said.last_hidden_state
        logits.append(said.logits[0, 0])
    return logits


def _close(found: Tensor, expected: Tensor) -> None:
    """But for tokens of clusters that a row does not take, which have the least."""
    known = found.isfinite()
    assert known.sum() in (IDS, IDS // 4)
    torch.testing.assert_close(found[known], expected[known], rtol=1e-3, atol=1e-3)
    if not known.all():
        assert expected[~known].max() < found[known].min()
    assert expected.std() > 0.1


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("kind", "changes", "lengths"),
    [
        (files.TARGET, {}, LENGTHS),
        (files.TARGET, LARGE_GEMMA4, LENGTHS[:2]),
        ("gemma4_unified_text", {}, LENGTHS[:2]),
    ],
)
def test_guesses_are_those_of_transformers(
    kind: str, changes: dict[str, Any], lengths: Seq[int], ordered: bool, tmp_path: Path
) -> None:
    """Of several texts at once, depth by depth, and of two guesses behind one."""
    case = _case(tmp_path, kind=kind, ordered=ordered, **changes)
    texts = [*map(_text, lengths)]
    seen = [_seen(case.target, text) for text in texts]
    expected = [_their_logits(case, text, (7, 8, 9)) for text in texts]
    draft = case.head.draft(seen)
    for row, logits in zip(draft.logits, expected, strict=True):
        _close(row, logits[0])
    rows = [*range(len(texts))]
    for depth, token in enumerate((7, 8), 1):
        for row, logits in zip(draft.further(rows, [token] * len(rows)), expected, strict=True):
            _close(row, logits[depth])
    last = len(texts) - 1
    other = _their_logits(case, texts[last], (7, 8, 10, 3))
    found = draft.further([0, last, last], [9, 9, 10])
    for row, logits in zip(found, (expected[0], expected[last], other), strict=True):
        _close(row, logits[3])
    _close(draft.further([2], [3])[0], other[4])


def test_texts_are_drafted_behind_in_groups_that_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _case(tmp_path)
    assert isinstance(case.head, AssistantHead)
    seen = [_seen(case.target, _text(length)) for length in (100, 20, 90)]
    assert case.head.groups(seen) == [[1, 2, 0]]
    # Of a position the keys and values of 2 heads, of 16 and of 32 numbers in four bytes.
    monkeypatch.setattr("common.model.gathered.MOST_BYTES", 2 * 90 * 2 * 2 * (16 + 32) * 4)
    assert case.head.groups(seen) == [[1, 2], [0]]
