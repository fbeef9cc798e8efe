"""Values by which a model is told from others of its size."""

from __future__ import annotations

import json

import torch
from hypothesis import given
from hypothesis import strategies as st

from common.model import base_samples

MATRIX = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_a_matrix_is_known_in_whatever_type_it_is() -> None:
    stored = json.loads(json.dumps(base_samples.of(MATRIX)))
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        assert base_samples.match(stored, MATRIX.to(kind))
    assert base_samples.match(base_samples.of(MATRIX.bfloat16()), MATRIX.half())


def test_another_is_not() -> None:
    stored = base_samples.of(MATRIX)
    assert not base_samples.match(stored, torch.roll(MATRIX, 1, dims=1))
    assert not base_samples.match(stored[1:], MATRIX)


@given(JSON)
def test_nor_is_anything_else(stored: object) -> None:
    assert not base_samples.match(stored, MATRIX)
    assert not base_samples.match([10**400], MATRIX)
