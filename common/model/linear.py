"""Linear layers whose output row depends on its input row alone, bit for bit.

BLAS picks another kernel, and so another order of summation, when the number of rows
changes. Three replacements take that freedom away:

* `PackedProduct` (CPU): weights re-ordered once for oneDNN. Its kernels sum each row in one
  order at every row count, in float32 and bfloat16, and beat the plain call at few rows.
* `WidenedProduct` (CPU): the same with weights of 16 bits held as float32, where the processor
  has no products of 16 bits and torch imitates them one number at a time.
* `TiledProduct` (any device): rows padded to tiles of a fixed count, one product a tile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# With AMX oneDNN sums a row of bfloat16 in another order beside 19 rows than alone, at some widths.
# It looks at the variable with its first product, and never again.

TILE_ROWS = 16
"""Rows of one product where kernels are not invariant by themselves, on CPU."""

CUDA_TILE_ROWS = 64
"""The same on CUDA, where a pass is bound by memory and 64 rows cost what 1 does."""

PARALLEL_ELEMENTS = 16_384
"""Elements below which torch runs an elementwise kernel on one thread; a multiple of every SIMD
width, so that no element falls into a scalar tail, whose exp() rounds differently."""

_PROBE_ROWS, _PROBE_OUTPUTS = 8, 1024
"""Of the layers by which kernels are judged."""


def in_tiles(product: Callable[[Tensor], Tensor], x: Tensor, tile: int) -> Tensor:
    """A product of rows and a matrix in products of exactly `tile` rows.

    Args:
        product: Maps `[tile, in]` to `[tile, out]`.
        x: Inputs, `[N, in]`.
        tile: Rows of one product.

    Returns:
        `[N, out]`.
    """
    rows = x.shape[0]
    if missing := -rows % tile:
        x = F.pad(x, (0, 0, 0, missing))
    out = [product(part) for part in torch.split(x, tile)]
    return (out[0] if len(out) == 1 else torch.cat(out))[:rows]


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    """`F.linear` of `[N, in]` in products of exactly `tile` rows; see `in_tiles`."""
    return in_tiles(lambda part: F.linear(part, weight, bias), x, tile)


class Product(Protocol):
    """A matrix ready to be multiplied by."""

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b` of `[N, in]`, in the type of x."""

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`W x + b + other`; may take the place of other, which is nobody's any more."""


def added(
    x: Tensor, product: Product, read: Tensor, norm: Callable[[Tensor], Tensor] | None
) -> Tensor:
    """`x` and what a product makes of what it reads, or the norm of that, where there is one.

    Args:
        x: `[N, out]`; nobody's any more.
        product: Whose.
        read: `[N, in]`.
        norm: Of its outputs.
    """
    return product.plus(read, x) if norm is None else x.add_(norm(product(read)))


MakeProduct = Callable[[Tensor, Tensor | None], Product]
"""Makes one of a weight `[out, in]` and a bias `[out]`."""


class PackedProduct:
    """A matrix packed for oneDNN, on CPU.

    Args:
        weight: `[out, in]`; not kept.
        bias: `[out]` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # A batch size given here would select a special kernel for that many rows.
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = None if bias is None else bias.contiguous()  # its strides are not looked at
        self._alone = _row_alone_is_steady(*weight.shape, weight.dtype, torch.get_num_threads())
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b` of `[N, in]`."""
        if len(x) == 1 and not self._alone:
            return self(torch.cat((x, x)))[:1]
        out: Tensor = self._plain(x, self._packed, self._bias, "none", [], "")
        return out

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`W x + b + other`, all of a row within one rounding."""
        if len(x) == 1 and not self._alone:
            return self.plus(torch.cat((x, x)), torch.cat((other, other)))[:1]
        out: Tensor = self._binary(x, other, self._packed, self._bias, "add")
        return out


class WidenedProduct:
    """A matrix of 16-bit weights packed as float32: twice the memory, tens of times the speed.

    Sums are float32, and rounded once.

    Args:
        weight: `[out, in]`; not kept.
        bias: `[out]` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._wide = PackedProduct(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        """See `Product`."""
        return self._wide(x.float()).to(x.dtype)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """See `Product`."""
        return self._wide.plus(x.float(), other.float()).to(x.dtype)


class TiledProduct:
    """A matrix multiplied by torch, always with so many rows; others are padded.

    Args:
        weight: `[out, in]`.
        bias: `[out]` or None.
        tile: Rows of one product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, tile: int) -> None:
        self._weight, self._bias, self._tile = weight, bias, tile

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b`."""
        return tiled_linear(x, self._weight, self._bias, self._tile)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`W x + b + other`, in the place of other; of a multiple of those rows."""
        assert len(x) % self._tile == 0
        if self._bias is not None:
            other += self._bias
        for place, part in zip(other.split(self._tile), x.split(self._tile), strict=True):
            place.addmm_(part, self._weight.T)
        return other


class ProductLinear(nn.Module):
    """A product as a layer.

    Args:
        product: Maps `[N, in]` to `[N, out]`.
    """

    def __init__(self, product: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._product = product

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        return self._product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def packed_products(dtype: torch.dtype) -> tuple[str, MakeProduct] | None:
    """How oneDNN multiplies by weights of `dtype` here, and what that is called; None: never."""
    if packing_works(dtype):
        return "packed", PackedProduct
    if dtype.itemsize == 2 and packing_works(torch.float32):
        return "widened", WidenedProduct
    return None


def few_row_products(
    device: torch.device, dtype: torch.dtype
) -> Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]:
    """How to multiply few rows fastest, whatever becomes of a row's bits among others: makes
    products of weights `[out, in]` and biases, wherever they are."""
    packed = packed_products(dtype) if device.type == "cpu" else None

    def made(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        held = weight.to(device, dtype)
        added = None if bias is None else bias.to(device, dtype)
        if packed is not None:
            return packed[1](held, added)
        return partial(F.linear, weight=held, bias=added)

    return made


def packing_works(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for `dtype` here that compute a row alike among any others."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and _wide_layers_are_steady()


@cache
def _row_alone_is_steady(outputs: int, inputs: int, dtype: torch.dtype, threads: int) -> bool:
    """Whether a layer of this shape gives a row the same bits alone.

    From 1024 inputs on oneDNN cuts the sum of a single row into parts, of several rows not. The
    inputs here are of all sizes and cancel out, so that another order of summation shows.
    """
    generator = torch.Generator().manual_seed(0)
    pairs = (_PROBE_ROWS, inputs // 2)
    half = torch.randn(pairs, generator=generator)
    half *= 2.0 ** torch.randint(0, 24, pairs, generator=generator)
    x = torch.zeros(_PROBE_ROWS, inputs)
    x[:, : 2 * pairs[1]] = torch.cat((half.to(dtype), -half.to(dtype)), dim=1)
    x = x[:, torch.randperm(inputs, generator=generator)].to(dtype)
    weight = torch.ones(min(outputs, _PROBE_OUTPUTS), inputs, dtype=dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    run = torch.ops.mkldnn._linear_pointwise.default
    alone = [run(row, packed, None, "none", [], "") for row in x.split(1)]
    return torch.equal(torch.cat(alone), run(x, packed, None, "none", [], ""))


@cache
def _wide_layers_are_steady() -> bool:
    """Whether a wide float32 layer gives rows the same bits alone and among others.

    That of torch 2.11 does not: alone, or, on other processors, from 16 rows on.
    """
    generator = torch.Generator().manual_seed(0)
    product = PackedProduct(torch.randn(4096, 320, generator=generator), None)
    rows = torch.randn(64, 320, generator=generator)
    together = product(rows)
    counts = (1, 2, 15, 16, 17, 48)
    return all(torch.equal(together[:count], product(rows[:count])) for count in counts)


MakeLinear = Callable[[Tensor, Tensor | None], nn.Module]
"""Makes a layer of a weight `[out, in]` and a bias `[out]`."""


def as_layer(make: MakeProduct) -> MakeLinear:
    """Makes layers of products."""
    return lambda weight, bias: ProductLinear(make(weight, bias))


def linear_maker(device: torch.device, dtype: torch.dtype) -> tuple[str, MakeLinear]:
    """The layers that fit a device and a type, and their name for the numerics fingerprint."""
    packed = packed_products(dtype) if device.type == "cpu" else None
    if packed is not None:
        name, product = packed
        return name, as_layer(product)
    tile = tile_rows(device)
    return f"tiled{tile}", as_layer(partial(TiledProduct, tile=tile))


def tile_rows(device: torch.device) -> int:
    """Rows of one product where kernels are not invariant by themselves."""
    return TILE_ROWS if device.type == "cpu" else CUDA_TILE_ROWS
