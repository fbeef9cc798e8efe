"""A Gemma 4 assistant on CUDA guesses what it does on the processor; the text is the plain one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from common.model.assistant.head import Ending
from common.model.loader import Dtype
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, eagle_of, runner
from tests.unit.common.model.assistant import files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TOKENS, IDS = 40, 200
SIZES = {"vocab_size": IDS, "vocab_size_per_layer_input": IDS}


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-3), ("bfloat16", 0.3)])
def test_guesses_are_those_of_the_processor(
    ordered: bool, dtype: Dtype, most: float, tmp_path: Path
) -> None:
    """In float32 there; behind several texts, over parents that branch."""
    directory = tiny_models.save(files.TARGET, tmp_path / "target", **SIZES)
    path = files.write(tmp_path / "assistant", directory, ordered=ordered)
    draw, found = random.Random(1), []
    texts = [[draw.randrange(3, IDS) for _ in range(length)] for length in (100, 3, 17)]
    for target in (runner(directory, dtype, device="cuda"), runner(directory)):
        head, seen = eagle_of(path, target), []
        for text in texts:
            slots = target.pool.lease(len(text)).slots[: len(text) - 1]
            segment = Segment(text[:-1], 0, slots, wanted=[len(text) - 2])
            state = target.forward([segment]).states[0].clone()  # graphs write to one place
            seen.append(Ending(state, text[-1], slots))
        draft = head.draft(seen)
        steps = [([0, 0, 1, 2, 2], [5, 6, 7, 8, 9]), ([0, 1, 1, 4], [3, 4, 5, 6]), ([3], [8])]
        found.append([draft.logits, *(draft.further(*step) for step in steps)])
    for one, other in zip(*found, strict=True):
        assert one.device.type == "cuda"
        both = one.isfinite().cpu() & other.isfinite()  # clusters may be about as likely
        assert both.sum() > both.numel() / (5 if ordered else 2)
        assert (one.cpu() - other)[both].abs().max() < most


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_text_is_the_plain_one(dtype: Dtype, tmp_path: Path) -> None:
    """Alone and beside others, greedy and drawn."""
    directory = tiny_models.save(files.TARGET, tmp_path / "target")
    target = runner(directory, dtype, device="cuda")
    head = eagle_of(files.write(tmp_path / "assistant", directory), target)
    draw = random.Random(2)
    cases = [
        (
            [draw.randrange(3, tiny_models.VOCAB) for _ in range(length)],
            SamplingParams(temperature=0.8 * (length % 2), seed=length),
        )
        for length in (1, 8, 30, 81)
    ]
    plain = Pair.make(target).generate_all(cases, TOKENS, method="plain")
    pair = Pair.make(target, eagle=head)
    assert pair.generate_all(cases, TOKENS, method="eagle", draft_tokens=4) == plain
    alone = [
        pair.generate(prompt, TOKENS, sampling=sampling, method="eagle+ngram")
        for prompt, sampling in cases
    ]
    assert alone == plain
    assert pair.engine.failures.counts["draft"] == 0
    assert pair.engine.totals.drafts["eagle"].drafted_tokens > 0
