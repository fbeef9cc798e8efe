"""Rows of what a pass found."""

from __future__ import annotations

import pytest
import torch

from common.model.output import rows_of


@pytest.mark.parametrize("at", [[], [2], [0, 2], [2, 0, 2], [2, 1, 0], [0, 1, 2]])
def test_rows_are_those_that_are_asked_for(at: list[int]) -> None:
    """In any order; not copied where they are all."""
    logits = torch.randn(3, 5)
    found = rows_of(logits, at)
    assert torch.equal(found, logits[at])
    assert (found is logits) == (at == [0, 1, 2])
