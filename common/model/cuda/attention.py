"""Paged tree attention on CUDA.

A program attends the queries of one tile to a stretch of keys, for one key/value head; a second
kernel joins the stretches of each query. What a query is summed in depends on its position alone:

* keys stand in canonical order (column = absolute position) and are taken in blocks of `KEYS`;
* stretches begin at the same positions in every text;
* a product always has `TILE` queries, each computed by itself.

A tile may hold rows of one sequence that end different paths of a tree. Blocks in which they see
the same keys serve all of them; behind these every row is served its own.

Split keys and their joining: Dao et al., "Flash-Decoding for long-context inference" (2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda import keys
from common.model.cuda.keys import ROW_SECTIONS, Size
from common.model.cuda.rowwise import capped_by

_TILE = tl.constexpr(keys.TILE)
_KEYS = tl.constexpr(keys.KEYS)
_SHORT = tl.constexpr(keys.SHORT_BLOCKS)
_SHORTS = tl.constexpr(keys.SHORT_STRETCHES)
_LONG = tl.constexpr(keys.LONG_BLOCKS)
_POSITIONS = tl.constexpr(ROW_SECTIONS.index("positions"))
_OWN = tl.constexpr(ROW_SECTIONS.index("own"))
_PAGES = tl.constexpr(ROW_SECTIONS.index("pages"))
_PATH = tl.constexpr(ROW_SECTIONS.index("path"))
_TILES = tl.constexpr(len(ROW_SECTIONS))

_WIDE = 256
"""Numbers of a head beyond which a program has twice the threads and one stage, for registers and
memory to suffice."""

_MOST_PARTS = 1 << 18
"""Partial sums, of a query's head over a stretch, that are kept at once: 128 MiB of 128 numbers."""


@triton.jit
def _bounds(stretch):
    """First block of a stretch, and the first behind it."""
    first = tl.where(stretch < _SHORTS, stretch, _SHORTS) * _SHORT
    first += tl.maximum(stretch - _SHORTS, 0) * _LONG
    return first, first + tl.where(stretch < _SHORTS, _SHORT, _LONG)


@triton.jit
def _stretch_of(block):
    """The stretch a block belongs to."""
    short = block // _SHORT
    return tl.where(short < _SHORTS, short, _SHORTS + (block - _SHORTS * _SHORT) // _LONG)


@triton.jit(do_not_specialize=["count", "tiles", "begin"])
def _attend(
    queries,  # [N, H, D]
    cache,  # [slots, Hkv, 2 D]
    sums,  # float32 [tiles * ROWS, H, stretches, D]
    tops,  # float32 [tiles * ROWS, H, stretches, 2]: largest score, and what the weights add up to
    words,  # int32, see `keys`
    count,  # N
    tiles,  # T
    begin,  # first of the tiles that are attended with
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    tile, kv_head, stretch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    REPEAT: tl.constexpr = HEADS // KV_HEADS
    line = tl.arange(0, _TILE)
    member = line // REPEAT
    head = kv_head * REPEAT + line % REPEAT
    members = words + _TILES * count + (begin + tile) * ROWS
    row = tl.load(members + member, mask=member < ROWS, other=-1)
    real = row >= 0
    position = tl.load(words + _POSITIONS * count + row, mask=real, other=-1)
    last = tl.max(position)
    first, behind = _bounds(stretch)
    behind = tl.minimum(behind, (last + _KEYS) // _KEYS)
    if WINDOW > 0:
        nearest = tl.min(tl.where(real, position, 2147483647))
        first = tl.maximum(first, tl.maximum(nearest - WINDOW + 1, 0) // _KEYS)
    if first >= behind:
        return
    common = tl.load(words + _TILES * count + tiles * ROWS + begin + tile)
    common = tl.minimum(tl.maximum(common, first), behind)
    readers = tl.sum(real.to(tl.int32)) // REPEAT
    leader = tl.load(members)  # the row whose words serve all in the common blocks
    leader_own = tl.load(words + _OWN * count + leader)
    leader_pages = tl.load(words + _PAGES * count + leader)
    leader_path = tl.load(words + _PATH * count + leader)

    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    query = tl.load(
        queries + (row[:, None].to(tl.int64) * HEADS + head[:, None]) * SIZE + at[None, :],
        mask=real[:, None] & inside[None, :],
        other=0.0,
    )
    top = tl.full([_TILE], float("-inf"), tl.float32)
    total = tl.zeros([_TILE], tl.float32)
    summed = tl.zeros([_TILE, BLOCK], tl.float32)

    # One place computes both kinds of blocks, so that a key is summed alike in either.
    for step in range((common - first) + (behind - common) * readers):
        alone = step - (common - first)
        apart = alone >= 0
        reader = tl.where(apart, alone % readers, 0)
        block = tl.where(apart, common + alone // readers, first + step)
        guide = tl.load(members + reader, mask=apart, other=0)
        own = tl.load(words + _OWN * count + guide, mask=apart, other=leader_own)
        pages = tl.load(words + _PAGES * count + guide, mask=apart, other=leader_pages)
        path = tl.load(words + _PATH * count + guide, mask=apart, other=leader_path)
        reach = tl.load(words + _POSITIONS * count + guide, mask=apart, other=last)

        key_at = block * _KEYS + tl.arange(0, _KEYS)
        listed = key_at <= reach
        paged = listed & (key_at < own)
        page = tl.load(words + pages + key_at // PAGE, mask=paged, other=0)
        slot = tl.load(words + path + key_at - own, mask=listed & (key_at >= own), other=0)
        slot = tl.where(paged, page * PAGE + key_at % PAGE, slot)  # 0, always zero, for the rest
        places = cache + (slot.to(tl.int64) * KV_HEADS + kv_head) * 2 * SIZE

        key = tl.load(places[None, :] + at[:, None], mask=inside[:, None], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale  # [_TILE, _KEYS]
        if SOFTCAP > 0:
            score = capped_by(score, SOFTCAP)
        seen = (key_at[None, :] <= position[:, None]) & ((alone < 0) | (member == reader))[:, None]
        if WINDOW > 0:
            seen &= key_at[None, :] > position[:, None] - WINDOW
        score = tl.where(seen, score, float("-inf"))

        higher = tl.maximum(top, tl.max(score, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp(score - level[:, None])
        fade = tl.exp(top - level)
        value = tl.load(places[:, None] + SIZE + at[None, :], mask=inside[None, :], other=0.0)
        faded = summed * fade[:, None]
        summed = tl.dot(weight.to(value.dtype), value, faded, input_precision="ieee")
        total = total * fade + tl.sum(weight, 1)
        top = higher

    place = ((tile * ROWS + member).to(tl.int64) * HEADS + head) * tl.num_programs(2) + stretch
    kept = real[:, None] & inside[None, :]
    tl.store(sums + place[:, None] * SIZE + at[None, :], summed, mask=kept)
    tl.store(tops + place * 2, top, mask=real)
    tl.store(tops + place * 2 + 1, total, mask=real)


@triton.jit(do_not_specialize=["count", "stretches", "begin"])
def _join(
    sums,
    tops,
    out,  # [N, H, D]
    sinks,  # float32 [H]: scores beside those of keys, of which nothing comes; where SUNK
    words,
    count,
    stretches,
    begin,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SUNK: tl.constexpr,
):
    query, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(words + _TILES * count + begin + query)
    if row < 0:
        return
    position = tl.load(words + _POSITIONS * count + row)
    first = 0
    if WINDOW > 0:
        first = _stretch_of(tl.maximum(position - WINDOW + 1, 0) // _KEYS)
    at = tl.arange(0, BLOCK)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    if SUNK:
        top = tl.load(sinks + head + tl.arange(0, 1))
        total += 1
    summed = tl.zeros([BLOCK], tl.float32)
    for stretch in range(first, _stretch_of(position // _KEYS) + 1):
        place = (query.to(tl.int64) * HEADS + head) * stretches + stretch + tl.arange(0, 1)
        one_top = tl.load(tops + place * 2)
        one_total = tl.load(tops + place * 2 + 1)
        one = tl.load(sums + place * SIZE + at, mask=at < SIZE, other=0.0)
        higher = tl.maximum(top, one_top)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        fade, weight = tl.exp(top - level), tl.exp(one_top - level)
        summed = summed * fade + one * weight
        total = total * fade + one_total * weight
        top = higher
    target = out + (row.to(tl.int64) * HEADS + head) * SIZE + at
    tl.store(target, (summed / total).to(out.dtype.element_ty), mask=at < SIZE)


class Attention:
    """Attention of one shape of layers.

    Args:
        heads: H.
        kv_heads: Hkv; at most `TILE` query heads share one.
        size: D, of a query, a key and a value.
        scale: Factor on the scores.
        window: Keys a row sees, itself included; all where None.
        sinks: Of each query head a score beside its keys', of which nothing comes, `[H]`.
        softcap: What scaled scores are kept within, by their tanh; None for nothing.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        size: int,
        scale: float,
        window: int | None,
        sinks: Tensor | None = None,
        softcap: float | None = None,
    ) -> None:
        self._softcap = softcap or 0.0
        self._sinks = None if sinks is None else sinks.float()
        self._heads, self._kv_heads, self._size, self._scale = heads, kv_heads, size, scale
        self._shape = {
            "HEADS": heads,
            "SIZE": size,
            "BLOCK": max(16, triton.next_power_of_2(size)),  # a product takes 16 at least
            "WINDOW": window or 0,
        }

    def __call__(
        self, queries: Tensor, cache: Tensor, words: Tensor, size: Size, page: int
    ) -> Tensor:
        """Attends.

        Args:
            queries: `[N, H, D]`; overwritten.
            cache: Of the layer, keys and values of these rows included; `[slots, Hkv, 2 D]`.
            words: The batch, laid out; see `keys`.
            size: Of the batch.
            page: Positions in a block of the cache.

        Returns:
            `[N, H, D]`; rows that are padding are left as they come.
        """
        rows, wide, whole = size.tile_rows, self._size > _WIDE, queries.dtype == torch.float32
        most = _MOST_PARTS // (rows * self._heads * size.stretches)
        at_once = min(max(1, most), size.tiles)
        parts = (at_once * rows, self._heads, size.stretches)
        sums = queries.new_empty(*parts, self._size, dtype=torch.float32)
        tops = queries.new_empty(*parts, 2, dtype=torch.float32)
        for begin in range(0, size.tiles, at_once):
            tiles = min(at_once, size.tiles - begin)
            _attend[(tiles, self._kv_heads, size.stretches)](
                queries,
                cache,
                sums,
                tops,
                words,
                size.rows,
                size.tiles,
                begin,
                self._scale,
                KV_HEADS=self._kv_heads,
                ROWS=rows,
                PAGE=page,
                SOFTCAP=self._softcap,
                **self._shape,
                num_warps=8 if wide else 4,
                num_stages=1 if wide or whole else 3,  # what small devices hold
            )
            # Once these queries are read their places can take what they attended to.
            _join[(tiles * rows, self._heads)](
                sums,
                tops,
                queries,
                tops if self._sinks is None else self._sinks,
                words,
                size.rows,
                size.stretches,
                begin * rows,
                SUNK=self._sinks is not None,
                **self._shape,
            )
        return queries
