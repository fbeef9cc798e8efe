"""Linear layers with int8 weights: half the bytes of bfloat16, and on CPU integer products.

A weight is rounded to 255 steps of a scale of its output channel's own. On a CPU whose integer
products are exact (`integer_products`) a row of inputs is rounded likewise, to a scale of its
own, and the sums are integers: they cannot depend on how many rows there are. Elsewhere the
weights are widened for each product, which then runs in tiles like that of `TiledProduct`.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from common.model.linear import tiled_linear

Quantize = Literal["none", "int8", "int4"]
"""What weights are rounded to when a model is loaded."""

_STEPS = 127
_LEAST = 1e-30  # scale of what is zero all over
_ZERO = 128  # oneDNN takes inputs without sign: what stands for 0

_AT_A_TIME = 1 << 18
"""Weights that are rounded, or summed, together: meanwhile each takes several times its memory,
which the system would have to give anew for many more."""


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds a matrix to int8.

    Args:
        weight: `[out, in]`.

    Returns:
        int8 `[out, in]` and the scale of each output channel, float32 `[out]`.
    """
    rounded = torch.empty_like(weight, dtype=torch.int8)
    scale = weight.new_empty(len(weight), dtype=torch.float32)
    rows = _together(weight)
    parts = (each.split(rows) for each in (weight.detach(), rounded, scale))
    for some, steps, factors in zip(*parts, strict=True):
        factors.copy_(some.abs().amax(1)).clamp_min_(_LEAST).div_(_STEPS)
        steps.copy_((some / factors[:, None]).round_())  # widened while it is divided
    return rounded, scale


def row_sums(rounded: Tensor) -> Tensor:
    """Sums of the rows of a matrix. # int8 [out, in] -> int32 [out]"""
    sums = rounded.new_empty(len(rounded), dtype=torch.int32)  # between pieces it would part them
    rows = _together(rounded)
    for some, found in zip(rounded.split(rows), sums.split(rows), strict=True):
        torch.sum(some, 1, dtype=torch.int32, out=found)
    return sums


def _together(matrix: Tensor) -> int:
    """Rows of a matrix that are taken at a time."""
    return max(_AT_A_TIME // matrix.shape[1], 1)


class IntegerProduct:
    """A matrix of int8 weights packed for oneDNN.

    Args:
        weight: `[out, in]`; not kept.
        bias: `[out]` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        rounded, self._scale = round_weight(weight)
        self._packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._no_zeros = torch.zeros(len(rounded), dtype=torch.int32)
        self._bias = None if bias is None else bias.float()
        self._run = torch.ops.onednn.qlinear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b` of `[N, in]`, in the type of x."""
        y, scale = self._product(x)
        out = torch.empty(y.shape, dtype=x.dtype)
        if self._bias is None:
            return torch.mul(y, scale, out=out)
        return torch.add(y.mul_(scale), self._bias, out=out)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`W x + b + other`."""
        y, scale = self._product(x)
        y.mul_(scale)
        if self._bias is not None:
            y.add_(self._bias)
        return torch.add(y, other, out=torch.empty_like(other))

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`W x` but for the scales of the rows, and these. # float32 [N, out], [N, 1]"""
        top = torch.linalg.vector_norm(x, float("inf"), -1, keepdim=True, dtype=torch.float32)
        scale = top.clamp_min_(_LEAST).mul_(1 / _STEPS)
        # Conversion cuts off, so a half more than the zero rounds to the nearest.
        rounded = (x / scale).add_(_ZERO + 0.5).to(torch.uint8)
        product = self._run(
            rounded,
            1.0,
            _ZERO,
            self._packed,
            self._scale,
            self._no_zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return product, scale


class WidenedLinear(nn.Module):
    """A layer whose int8 weights are widened to the type of its inputs at each call, on any device.

    Args:
        weight: `[out, in]`; not kept.
        bias: `[out]` or None.
        tile: Rows of one product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: int) -> None:
        super().__init__()
        self._weight, self._scale = round_weight(weight)
        self._bias = bias
        self._tile = tile

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        rows = x.reshape(-1, x.shape[-1])
        out = tiled_linear(rows, self._weight.to(x.dtype), None, self._tile) * self._scale
        out = (out if self._bias is None else out + self._bias).to(x.dtype)
        return out.view(*x.shape[:-1], -1)


@cache
def integer_products() -> bool:
    """Whether oneDNN multiplies 8-bit integers exactly here; without VNNI its sums saturate."""
    if not torch.backends.mkldnn.is_available():
        return False
    product = IntegerProduct(torch.ones(64, 256), None)
    for sign in (1.0, -1.0):
        if not torch.equal(product(sign * torch.ones(2, 256)), torch.full((2, 64), sign * 256)):
            return False
    return True
