"""Assistants guess what `transformers` has them guess, behind any number of texts."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from common.model.assistant.head import AssistantHead, Ending
from common.model.drafting_head import DraftingHead
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import eagle_of, runner
from tests.tiny_models import LARGE_GEMMA4
from tests.unit.common.model.assistant import files

IDS = 200  # which clusters of one size have
_EYE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
LENGTHS = (5, 30, 100)
"""Of texts, one longer than the window, which is 40."""


class Case(NamedTuple):
    """A target with an assistant, here and as `transformers` computes them."""

    target: Runner
    head: DraftingHead[Any]
    their_target: Any
    theirs: Any


def _case(folder: Path, *, kind: str = files.TARGET, ordered: bool = False, **changes: Any) -> Case:
    """Of a type, and an assistant of the like."""
    directory = folder / "target"
    changes = {"vocab_size": IDS, **changes}
    if kind == files.TARGET:
        changes["vocab_size_per_layer_input"] = IDS
    their_target = tiny_models.stirred(kind, directory, **changes)
    own = "gemma4_unified_assistant" if "unified" in kind else "gemma4_assistant"
    path = files.write(folder / "assistant", directory, kind=own, ordered=ordered)
    theirs = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    target = runner(directory)
    return Case(target, eagle_of(path, target), their_target.eval(), theirs.eval())


def _seen(target: Runner, ids: Seq[int]) -> Ending:
    """What a target that was shown all but the last token knows of a text."""
    end = len(ids) - 1
    slots = target.pool.lease(end).slots[:end]
    half = end // 2
    target.forward([Segment(ids[:half], 0, slots, wanted=[half - 1])])
    found = target.forward([Segment(ids[half:end], half, slots, wanted=[end - half - 1])])
    return Ending(found.states[0], ids[-1], slots)


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
    texts = [tiny_models.text(length, IDS) for length in lengths]
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


def test_a_target_that_sees_pictures_keeps_its_keys_alike(tmp_path: Path) -> None:
    """Whose configuration has its text's within; as published ones have. In bfloat16, as these are
    written, with int8 too: what comes out is near."""
    text = {**tiny_models.MORE[files.TARGET], "vocab_size": IDS, "vocab_size_per_layer_input": IDS}
    config = AutoConfig.for_model(
        "gemma4", text_config=text, vision_config=_EYE, audio_config=None, image_token_id=1
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "target")
    path = files.write(tmp_path / "assistant", tmp_path / "target", dtype=torch.bfloat16)
    found = []
    for dtype, quantize in (("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")):
        target = runner(tmp_path / "target", dtype, quantize=quantize)
        draft = eagle_of(path, target).draft([_seen(target, tiny_models.text(60, IDS))])
        found.append(torch.cat((draft.logits, draft.further([0], [5]))))
    for other in found[1:]:
        assert float((other - found[0]).norm() / found[0].norm()) < 0.1


def test_files_that_are_overwritten_afterwards_change_nothing(tmp_path: Path) -> None:
    """Nor does one that is cut short end the process: weights are in no pages of a file."""
    case = _case(tmp_path, ordered=True)
    seen = _seen(case.target, tiny_models.text(20, IDS))
    before = case.head.draft([seen]).logits.clone()
    file = tmp_path / "assistant" / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))
    assert torch.equal(case.head.draft([seen]).logits, before)


@pytest.mark.parametrize("ordered", [False, True])
def test_texts_are_drafted_behind_in_groups_that_memory_holds(
    ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = _case(tmp_path, ordered=ordered)
    assert isinstance(case.head, AssistantHead)
    seen = [_seen(case.target, tiny_models.text(length, IDS)) for length in (100, 20, 90)]
    assert case.head.groups(seen) == [[1, 2, 0]]
    # Keys and values of 2 heads in four bytes, 32 numbers of all positions, 16 of those in the
    # window; three times the logits, and the rows that 5 of 20 clusters have in the output layer.
    size = 4 * 2 * 2 * (89 * 32 + 41 * 16) + 3 * IDS * 4 + ordered * IDS // 4 * 48 * 4
    monkeypatch.setattr("common.model.gathered.MOST_BYTES", 2 * size)
    assert case.head.groups(seen) == [[1, 2], [0]]
    monkeypatch.setattr("common.model.gathered.MOST_BYTES", 2 * size - 1)
    assert case.head.groups(seen) == [[1], [2], [0]]
