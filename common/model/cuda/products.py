"""Products of the CUDA decoder: a row's bits do not depend on what rows stand beside it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from common.model.int4 import Int4Product
from common.model.linear import CUDA_TILE_ROWS, MakeProduct, TiledProduct
from common.model.quantized import round_weight

_TILE_ROWS = tl.constexpr(16)
_OUTPUTS, _INPUTS, _STAGES = 32, 128, 5
"""What a program of `_widen` computes, how much it reads at once, and in how many stages: a matrix
of few outputs has about one program a processor, and that one has to keep the memory busy."""


class Products(NamedTuple):
    """What a model multiplies by."""

    layer: MakeProduct
    """Makes the products of its layers."""
    head: MakeProduct
    """Makes that of its output layer."""
    row_step: int
    """Rows are a multiple of this."""
    whole: MakeProduct
    """Makes such as are never rounded."""
    rounds_experts: bool = False
    """Whether weights of experts are rounded, to int8."""


@triton.jit
def _widen(
    x,  # [N, in]
    weight,  # int8 [out, in]
    scale,  # float32 [out]
    bias,  # [out]
    other,  # [N, out]
    out,  # [N, out]
    OUT: tl.constexpr,
    IN: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = (tl.program_id(0) * _TILE_ROWS + tl.arange(0, _TILE_ROWS)).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = output < OUT
    summed = tl.zeros([_TILE_ROWS, OUTPUTS], tl.float32)
    for start in range(0, IN, INPUTS):
        at = start + tl.arange(0, INPUTS)
        rows = tl.load(x + row[:, None] * IN + at[None, :], mask=(at < IN)[None, :], other=0.0)
        wide = tl.load(
            weight + output[None, :].to(tl.int64) * IN + at[:, None],
            mask=inside[None, :] & (at < IN)[:, None],
            other=0,
        )
        summed = tl.dot(rows, wide.to(rows.dtype), summed, input_precision="ieee")
    summed *= tl.load(scale + output, mask=inside, other=0.0)[None, :]
    if BIASED:
        summed += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * OUT + output[None, :]
    if ADDED:
        summed += tl.load(other + place, mask=inside[None, :], other=0.0).to(tl.float32)
    tl.store(out + place, summed.to(out.dtype.element_ty), mask=inside[None, :])


class RoundedProduct:
    """A matrix of int8 weights, widened as they are read: half the bytes of bfloat16.

    Args:
        weight: `[out, in]`; not kept.
        bias: `[out]` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._scale = round_weight(weight)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b`."""
        return self._product(x, None)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`W x + b + other`."""
        return self._product(x, other)

    def _product(self, x: Tensor, other: Tensor | None) -> Tensor:
        rows, (outputs, inputs) = len(x), self._weight.shape
        assert rows % _TILE_ROWS.value == 0
        out = x.new_empty(rows, outputs)
        _widen[(rows // _TILE_ROWS.value, triton.cdiv(outputs, _OUTPUTS))](
            x,
            self._weight,
            self._scale,
            self._scale if self._bias is None else self._bias,
            out if other is None else other,
            out,
            OUT=outputs,
            IN=inputs,
            BIASED=self._bias is not None,
            ADDED=other is not None,
            OUTPUTS=_OUTPUTS,
            INPUTS=_INPUTS,
            num_stages=_STAGES,
        )
        return out


_cublas = partial(TiledProduct, tile=CUDA_TILE_ROWS)

PRODUCTS = {
    "none": Products(_cublas, _cublas, CUDA_TILE_ROWS, _cublas),
    "int8": Products(RoundedProduct, RoundedProduct, _TILE_ROWS.value, _cublas, True),
    "int4": Products(Int4Product, _cublas, _TILE_ROWS.value, _cublas),
}
"""By what weights are rounded to."""
