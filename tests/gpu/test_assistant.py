"""A Gemma 4 assistant on CUDA guesses what it does on the processor."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from common.model.assistant.head import Ending
from common.model.loader import Dtype
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import eagle_of, runner
from tests.unit.common.model.assistant import files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

IDS = 200
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
