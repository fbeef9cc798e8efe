"""Rows of what a pass found."""

from __future__ import annotations

import pytest
import torch

from common.model.output import rows_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at", [[], [2], [0, 2], [1, 2], [2, 0, 2], [2, 1, 0], [0, 1, 2]])
def test_rows_are_those_that_are_asked_for(at: list[int], dtype: torch.dtype) -> None:
    """In any order; not copied where they follow each other."""
    logits = torch.randn(3, 5, dtype=dtype)
    found = rows_of(logits, at)
    assert torch.equal(found, logits[at])
    same = found.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()
    assert same == (at in ([], [2], [1, 2], [0, 1, 2]))
