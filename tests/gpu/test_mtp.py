"""A layer for multi-token prediction on CUDA guesses what it does on the processor."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from common.model.keyed_head import Behind
from common.model.loader import Dtype
from common.model.mtp.head import MtpHead
from common.model.segment import Segment
from tests.inprocess import eagle_of, runner
from tests.tiny_models import VOCAB
from tests.unit.common.model.mtp import files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(
    ("kind", "dtype", "most"),
    [
        ("glm4_moe", "float32", 1e-3),
        ("deepseek_v3", "float32", 1e-3),
        ("glm4_moe_lite", "bfloat16", 0.3),
    ],
)
def test_guesses_are_those_of_the_processor(
    kind: str, dtype: Dtype, most: float, tmp_path: Path
) -> None:
    """Behind several texts, over parents that branch; rounded rows may go to other experts."""
    directory = files.write(kind, tmp_path)
    draw, found = random.Random(1), []
    texts = [[draw.randrange(3, VOCAB) for _ in range(length)] for length in (100, 3, 17)]
    for device, numbers in (("cuda", dtype), ("cpu", "float32")):
        target = runner(directory, numbers, device=device, eagle=directory)
        head, seen = eagle_of(directory, target), []
        assert isinstance(head, MtpHead)
        for text in texts:
            slots = target.pool.lease(len(text)).slots[: len(text) - 1]
            states = target.forward([Segment(text[:-1], 0, slots, wanted=[])]).features
            assert states is not None
            seen.append(Behind(states, text[1:], 0, slots))
        draft = head.draft(seen)
        steps = [([0, 0, 1, 2, 2], [5, 6, 7, 8, 9]), ([0, 1, 1, 4], [3, 4, 5, 6]), ([3], [8])]
        found.append([draft.logits, *(draft.further(*step) for step in steps)])
    for one, other in zip(*found, strict=True):
        assert one.device.type == "cuda"
        errors = (one.cpu() - other).norm(dim=1) / other.norm(dim=1)
        assert errors.median() < most
        assert errors.max() < most or dtype == "bfloat16"
