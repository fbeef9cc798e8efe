"""Which ids occur in a text."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from common.model.seen import mark, seen

VOCAB = 20
_TEXT = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@given(parts=st.lists(_TEXT, min_size=1, max_size=4))
def test_a_mask_grows_with_its_text(parts: list[list[int]]) -> None:
    """Part by part, where ids occur again or none come, it is that of the whole."""
    mask = seen(parts[0], VOCAB, torch.device("cpu"))
    for part in parts[1:]:
        mark(mask, part)
    assert mask.nonzero()[:, 0].tolist() == sorted({each for part in parts for each in part})
