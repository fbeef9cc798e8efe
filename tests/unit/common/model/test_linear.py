"""Packed layers give a row the bits it has among others, wide ones too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.fused import _gated, _gelu
from common.model.linear import (
    PARALLEL_ELEMENTS,
    MakeProduct,
    PackedProduct,
    ProductLinear,
    WidenedProduct,
    packing_works,
)
from tests import tiny_models
from tests.inprocess import runner

ROWS = (1, 2, 3, 4, 7, 8, 13, 24, 33)


def _cancelling(rows: int, inputs: int) -> Tensor:
    """Rows whose sums are small beside their terms: another order of summation shows. # [N, in]"""
    generator = torch.Generator().manual_seed(rows)
    half = torch.randn(rows, inputs // 2, generator=generator)
    half *= 2.0 ** torch.randint(0, 24, half.shape, generator=generator)
    half = half.bfloat16().float()
    return torch.cat((half, -half), dim=1)[:, torch.randperm(inputs, generator=generator)]


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (PackedProduct, torch.bfloat16),
        (PackedProduct, torch.float32),
        (WidenedProduct, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("inputs", [320, 864, 1100, 2048, 5632])
def test_a_row_alone_has_the_bits_it_has_among_others(
    inputs: int, make: MakeProduct, dtype: torch.dtype
) -> None:
    if not packing_works(dtype if make is PackedProduct else torch.float32):
        pytest.skip("not packed on this machine")
    product = make(torch.ones(96, inputs, dtype=dtype), None)
    x = _cancelling(40, inputs).to(dtype)
    other = torch.randn(40, 96).to(dtype)
    whole, added = product(x), product.plus(x, other)
    for rows in ROWS:
        assert torch.equal(product(x[:rows]), whole[:rows])
        assert torch.equal(product.plus(x[:rows], other[:rows]), added[:rows])


@pytest.mark.parametrize("make", [PackedProduct, WidenedProduct])
def test_a_packed_layer_is_the_layer(make: MakeProduct) -> None:
    """Of views, too."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(40, 24, generator=generator).T
    bias = torch.randn(24, 2, generator=generator)[:, 1]
    x = torch.randn(2, 5, 40, generator=generator)
    expected = torch.nn.functional.linear(x, weight, bias)
    assert torch.allclose(ProductLinear(make(weight, bias))(x), expected, atol=1e-5)


def test_widened_products_are_rounded_once() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 40, generator=generator).bfloat16()
    x, other = (torch.randn(5, size, generator=generator).bfloat16() for size in (40, 24))
    exact = x.double() @ weight.double().T
    product = WidenedProduct(weight, None)
    for found, expected in ((product(x), exact), (product.plus(x, other), exact + other)):
        assert found.dtype == torch.bfloat16
        step = torch.finfo(torch.bfloat16).eps * expected.abs()
        assert ((found - expected).abs() <= step / 2 + 1e-5).all()


def test_models_wider_than_a_sum_in_one_piece_are_served(tmp_path: Path) -> None:
    """The runner refuses models whose rows influence each other."""
    sizes = {"hidden_size": 1152, "intermediate_size": 64, "num_hidden_layers": 1}
    directory = tiny_models.save("llama", tmp_path, **sizes, initializer_range=0.02)
    for dtype in ("bfloat16", "float32"):
        assert runner(directory, dtype).loaded.parameters > 0  # type: ignore[arg-type]


@pytest.mark.parametrize("curve", [F.silu, _gelu])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gating_gives_a_row_its_bits_in_any_number_of_rows(
    dtype: torch.dtype, curve: Callable[[Tensor], Tensor]
) -> None:
    inner = 216  # no multiple of what a kernel takes at once
    rows = 3 * PARALLEL_ELEMENTS // inner
    both = torch.randn(rows, 2 * inner, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole = _gated(both, curve)
    finally:
        torch.set_num_threads(before)
    for row in range(0, rows, 7):
        assert torch.equal(_gated(both[row : row + 1], curve), whole[row : row + 1])
    expected = curve(both[:, :inner]) * both[:, inner:]
    assert torch.allclose(whole.float(), expected.float(), rtol=2e-2)
