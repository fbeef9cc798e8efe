"""What a decoder layer does beside products and attention: one program a row, in float32.

A row is never cut, and every row is computed by the same program: torch's own kernels sum in an
order that changes with the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda.keys import ROW_SECTIONS
from common.model.llama import Curve, Gate

_POSITIONS = tl.constexpr(ROW_SECTIONS.index("positions"))
_SLOTS = tl.constexpr(ROW_SECTIONS.index("slots"))
_GELU, _CLAMPED = tl.constexpr(int(Curve.GELU)), tl.constexpr(int(Curve.CLAMPED))
_CHUNK = 1024
"""Numbers of a row that one program of `gated` takes, and of any that one of `cap` does."""
_MOST_TURNED = 8192
"""Pairs of numbers beyond which a program has four times the threads, so that registers suffice."""


@triton.jit
def _norm(x, weight, out, epsilon, SIZE: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * STRIDE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    factors = tl.load(weight + at, mask=at < SIZE, other=0.0)  # here: the sum is a barrier
    inverse = tl.rsqrt(tl.sum(values * values) / SIZE + epsilon)
    normed = (values * inverse * factors).to(out.dtype.element_ty)
    tl.store(out + row * STRIDE + at, normed, mask=at < SIZE)


@triton.jit(do_not_specialize=["count"])
def _turn_and_store(
    qkv,  # [N, H + 2 Hkv, D]
    words,  # int32, see `keys`
    count,  # N
    cos,  # float32 [positions, D / 2]
    sin,
    growth,  # float32 [positions]: what queries are multiplied by, where GROWN
    weights,  # float32 [2, D]: of the norms of queries and keys
    queries,  # [N, H, D]
    cache,  # [slots, Hkv, 2 D]
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    NORMED: tl.constexpr,
    VALUES_NORMED: tl.constexpr,
    GROWN: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0)
    position = tl.load(words + _POSITIONS * count + row).to(tl.int64)
    slot = tl.load(words + _SLOTS * count + row).to(tl.int64)
    line = qkv + row.to(tl.int64) * (HEADS + 2 * KV_HEADS) * SIZE
    HALF: tl.constexpr = SIZE // 2

    head = tl.arange(0, BLOCK_HEADS)[:, None]
    at = tl.arange(0, BLOCK_HALF)[None, :]
    turning = (head < HEADS + KV_HEADS) & (at < HALF)
    low = tl.load(line + head * SIZE + at, mask=turning, other=0.0).to(tl.float32)
    high = tl.load(line + head * SIZE + HALF + at, mask=turning, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(low * low + high * high, 1) / SIZE
        inverse = tl.rsqrt(squares + epsilon)[:, None]
        of = weights + tl.where(head < HEADS, 0, SIZE) + at
        low *= inverse * tl.load(of, mask=turning, other=0.0)
        high *= inverse * tl.load(of + HALF, mask=turning, other=0.0)
    cosine = tl.load(cos + position * HALF + at, mask=at < HALF, other=0.0)
    sine = tl.load(sin + position * HALF + at, mask=at < HALF, other=0.0)
    first = low * cosine
    first -= high * sine
    second = high * cosine
    second += low * sine
    if GROWN:
        grown = tl.where(head < HEADS, tl.load(growth + position), 1.0)
        first *= grown
        second *= grown

    kind = queries.dtype.element_ty
    query = queries + (row.to(tl.int64) * HEADS + head) * SIZE + at
    is_query = turning & (head < HEADS)
    tl.store(query, first.to(kind), mask=is_query)
    tl.store(query + HALF, second.to(kind), mask=is_query)
    key = cache + (slot * KV_HEADS + head - HEADS) * 2 * SIZE + at
    is_key = turning & (head >= HEADS)
    tl.store(key, first.to(kind), mask=is_key)
    tl.store(key + HALF, second.to(kind), mask=is_key)

    kv_head = tl.arange(0, BLOCK_KV)[:, None]
    place = tl.arange(0, BLOCK_SIZE)[None, :]
    inside = (kv_head < KV_HEADS) & (place < SIZE)
    value = tl.load(line + (HEADS + KV_HEADS + kv_head) * SIZE + place, mask=inside, other=0.0)
    if VALUES_NORMED:
        wide = value.to(tl.float32)
        squares = tl.sum(wide * wide, 1) / SIZE
        value = (wide * tl.rsqrt(squares + epsilon)[:, None]).to(kind)
    tl.store(cache + ((slot * KV_HEADS + kv_head) * 2 + 1) * SIZE + place, value, mask=inside)


@triton.jit
def gate_by(gate, up, CURVE: tl.constexpr, STEEPNESS: tl.constexpr, LIMIT: tl.constexpr):
    """What a gate leaves of the other half, as `Gate` says; of float32."""
    bent = gate
    if CURVE == _CLAMPED:  # what is no number stays none
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up)) + 1
        bent = gate * STEEPNESS
    if CURVE == _GELU:  # its tanh as what SiLU is made of
        bent = 1.59576912160573 * (gate + 0.044715 * gate * gate * gate)
        bent = tl.maximum(bent, -80.0)  # a cube is soon too large for exp, which is tested for
    return gate / (1 + tl.exp(-bent)) * up


@triton.jit
def _gated(
    both,
    out,
    SIZE: tl.constexpr,
    CURVE: tl.constexpr,
    STEEPNESS: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(both + row * 2 * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * SIZE + SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
    product = gate_by(gate, up, CURVE, STEEPNESS, LIMIT)
    tl.store(out + row * SIZE + at, product.to(out.dtype.element_ty), mask=at < SIZE)


@triton.jit
def capped_by(x, CAP: tl.constexpr):
    """`CAP` times the tanh of what numbers are of it; of float32."""
    twice = x * (2 / CAP)
    power = tl.exp(tl.where(twice > 80.0, 80.0, twice))  # what is no number stays none
    return (power - 1) / (power + 1) * CAP


@triton.jit(do_not_specialize=["count"])
def _cap(x, count, CAP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(x + at, capped_by(numbers, CAP).to(x.dtype.element_ty), mask=at < count)


class RmsNorm:
    """Root-mean-square norm of rows.

    Args:
        weight: `[size]`.
        epsilon: Added to the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight, self._epsilon = weight.float(), epsilon

    def __call__(self, x: Tensor) -> Tensor:
        """Norms `[N, size]`."""
        return self._norm(x, torch.empty_like(x))

    def in_place(self, x: Tensor) -> None:
        """Norms `[N, size]`, which may be a part of wider rows, where it is."""
        self._norm(x, x)

    def _norm(self, x: Tensor, out: Tensor) -> Tensor:
        rows, size = x.shape
        assert x.stride() == out.stride()
        _norm[(rows,)](
            x,
            self._weight,
            out,
            self._epsilon,
            SIZE=size,
            STRIDE=x.stride(0),
            BLOCK=triton.next_power_of_2(size),
        )
        return out


class Turn:
    """Rotary embedding of queries and keys, which are normed before where a model does so.

    Args:
        heads: H.
        kv_heads: Hkv; 0 where neither keys nor values are made.
        size: D.
        norms: Weights of the norms of queries and keys: of each head, `[D]` both, or of all at
            once, `[H D]` and `[Hkv D]`.
        epsilon: Of these norms.
        norms_values: Whether each value is normed, too, by no weight.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        size: int,
        norms: tuple[Tensor, Tensor] | None,
        epsilon: float,
        *,
        norms_values: bool = False,
    ) -> None:
        self._epsilon = epsilon
        whole = norms is not None and norms[0].shape != (size,)
        self._whole = [RmsNorm(norm, epsilon) for norm in norms] if norms and whole else []
        self._norms = torch.stack(norms).float() if norms and not whole else None
        self._heads, self._kv_heads, self._size = heads, kv_heads, size
        half = triton.next_power_of_2(size // 2)
        turned = triton.next_power_of_2(heads + kv_heads) * half
        self._kernel = {
            "num_warps": 16 if turned > _MOST_TURNED else 4,
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "SIZE": self._size,
            "NORMED": self._norms is not None,
            "VALUES_NORMED": norms_values,
            "BLOCK_HEADS": triton.next_power_of_2(heads + kv_heads),
            "BLOCK_KV": triton.next_power_of_2(max(kv_heads, 1)),
            "BLOCK_HALF": half,
            "BLOCK_SIZE": triton.next_power_of_2(self._size),
        }

    def __call__(
        self,
        qkv: Tensor,
        angles: tuple[Tensor, Tensor],
        growth: Tensor | None,
        words: Tensor,
        cache: Tensor,
    ) -> Tensor:
        """Writes the rows' keys and values to the cache.

        Args:
            qkv: Queries, keys and values, `[N, (H + 2 Hkv) D]`; overwritten.
            angles: Cosines and sines, see `Rotary.table`.
            growth: See `Growth.table`; None for none.
            words: The batch, laid out; see `keys`.
            cache: Of the layer, `[slots, Hkv, 2 D]`.

        Returns:
            Queries, `[N, H, D]`.
        """
        rows = len(qkv)
        assert cache.shape[2] == 2 * self._size
        cos, sin = angles
        widths = [heads * self._size for heads in (self._heads, self._kv_heads, self._kv_heads)]
        for norm, part in zip(self._whole, qkv.split(widths, dim=1), strict=False):
            norm.in_place(part)
        queries = qkv.new_empty(rows, self._heads, self._size)
        _turn_and_store[(rows,)](
            qkv,
            words,
            rows,
            cos,
            sin,
            cos if growth is None else growth,
            cos if self._norms is None else self._norms,
            queries,
            cache,
            self._epsilon,
            GROWN=growth is not None,
            **self._kernel,
        )
        return queries


def cap(x: Tensor, by: float) -> None:
    """Has numbers of any shape become `by` times the tanh of what they are of it."""
    assert x.is_contiguous()
    _cap[(triton.cdiv(x.numel(), _CHUNK),)](x, x.numel(), CAP=by, BLOCK=_CHUNK)


def known_of(gate: Gate) -> dict[str, Any]:
    """A gate as kernels are compiled for it."""
    return {"CURVE": int(gate.curve), "STEEPNESS": gate.steepness, "LIMIT": gate.limit}


def gated(both: Tensor, gate: Gate) -> Tensor:
    """What a gate leaves of the second half of `[N, gate + up]`."""
    rows, size = len(both), both.shape[1] // 2
    out = both.new_empty(rows, size)
    grid = (rows, triton.cdiv(size, _CHUNK))
    _gated[grid](both, out, SIZE=size, **known_of(gate), BLOCK=_CHUNK)
    return out
