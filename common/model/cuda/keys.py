"""Which keys each row of a batch sees, in one array that goes to the device in one copy.

The array begins with sections of one word a row (`ROW_SECTIONS`), then says which rows each tile
has (`tile_rows` a tile) and in how many blocks of keys they agree. Behind these stand the lists
that rows point to: the pages of each sequence, and of each path through a tree the slots that
follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from common.model.kv_cache import TRASH_SLOT
from common.model.segment import Segment

TILE = 16
"""Queries of one product: rows of a tile times query heads of a key/value head."""

KEYS = 64
"""Keys that are taken at once; blocks begin at multiples of this position."""

SHORT_BLOCKS, SHORT_STRETCHES, LONG_BLOCKS = 4, 32, 32
"""Blocks of the first stretches, how many of these there are, and blocks of all after. Short ones
give the processors of a device work where a text is short, long ones keep partial sums small."""

ROW_SECTIONS = ("ids", "positions", "slots", "wanted", "own", "pages", "path")
"""One word a row each: its token, its absolute position, where its key goes, the rows whose logits
are wanted, how many positions its sequence's pages serve, where those stand in the array, and where
the slots behind them do."""

_FEW_ROWS = 64
"""Beyond so many, rows are padded to a multiple of this: sizes are graphs, and each takes time to
capture and memory to keep."""

_EVERYWHERE = 1 << 30
"""Blocks in which the rows of one path agree."""


@dataclass(frozen=True)
class Size:
    """What a pass is padded to; equal sizes are one graph."""

    rows: int
    """Rows."""
    tiles: int
    """Tiles of attention."""
    tile_rows: int
    """Rows of a tile."""
    stretches: int
    """Stretches of keys."""
    wanted: int
    """Rows whose logits are computed."""


@dataclass(frozen=True)
class Keys:
    """A batch laid out.

    Attributes:
        words: int32, see the module.
        size: What it was padded to.
        wanted: Rows whose logits are wanted.
    """

    words: np.ndarray
    size: Size
    wanted: int


def section(words: Tensor, size: Size, name: str) -> Tensor:
    """One of `ROW_SECTIONS` of a batch laid out, `[N]`."""
    first = ROW_SECTIONS.index(name) * size.rows
    return words[first : first + size.rows]


def tile_rows(heads: int, kv_heads: int) -> int:
    """Rows that a tile has room for, of so many query heads and key/value heads."""
    return TILE // (heads // kv_heads)


def stretches(position: int) -> int:
    """Stretches that a row at this position sees."""
    block = position // KEYS
    if block < SHORT_BLOCKS * SHORT_STRETCHES:
        return block // SHORT_BLOCKS + 1
    return SHORT_STRETCHES + (block - SHORT_BLOCKS * SHORT_STRETCHES) // LONG_BLOCKS + 1


def lay_out(segments: Sequence[Segment], *, page: int, tile_rows: int, row_step: int) -> Keys:
    """Lays a batch out.

    Args:
        segments: What each sequence runs.
        page: Positions in a block of the cache.
        tile_rows: Rows of a tile.
        row_step: Rows are padded to a multiple of this.
    """
    count = sum(len(segment.ids) for segment in segments)
    rows = _padded(count, row_step)
    sections = np.zeros((len(ROW_SECTIONS), rows), dtype=np.int32)
    ids, positions, slots, wanted, own, pages, path = sections
    slots[count:] = TRASH_SLOT
    lists: list[np.ndarray] = []
    listed = first = 0
    asked: list[int] = []
    known, tails = [0] * count, [0] * count  # of each row: what becomes `own` and `path`
    members: list[int] = []  # -1 where a tile has fewer rows
    agreed: list[int] = []
    for segment in segments:
        here = slice(first, first + len(segment.ids))
        ids[here], positions[here] = segment.ids, segment.positions
        slots[here] = segment.row_slots
        asked += [first + row for row in segment.wanted]
        table = segment.slots[::page] // page
        lists.append(table)
        pages[here] = listed
        listed += len(table)
        below: list[int] = []  # slots behind those, of one path after another
        alike: int | None = None  # positions that all its paths share
        for run in segment.runs:
            served, behind = segment.run_keys(run)
            for row in run:
                known[first + row], tails[first + row] = served, listed + len(below)
            if len(behind):
                below += behind
                alike = served if alike is None else min(alike, served)
        if below:
            lists.append(np.array(below))
            listed += len(below)
        common = _EVERYWHERE if alike is None else alike // KEYS
        ordered, blocks = _tiles(segment, first, common, tile_rows)
        members += ordered
        agreed += blocks
        first += len(segment.ids)
    size = Size(
        rows=rows,
        tiles=_power(len(agreed)),
        tile_rows=tile_rows,
        stretches=_power(stretches(int(positions.max()))),
        wanted=_padded(max(len(asked), 1), row_step),
    )
    wanted[: len(asked)] = asked
    empty = size.tiles - len(agreed)
    members += [-1] * (empty * tile_rows)
    agreed += [0] * empty
    before = sections.size + len(members) + len(agreed)
    pages[:count] += before
    own[:count], path[:count] = known, tails
    path[:count] += before
    parts = [sections.ravel(), np.array(members), np.array(agreed), *lists]
    return Keys(np.concatenate(parts, dtype=np.int32), size, len(asked))


def _tiles(
    segment: Segment, first: int, common: int, tile_rows: int
) -> tuple[list[int], list[int]]:
    """Rows of the tiles of a segment, one tile after another, -1 where the last has fewer; and the
    blocks in which those of each agree."""
    ordered = [first + row for run in segment.runs for row in run]
    paths = [number for number, run in enumerate(segment.runs) for _ in run]
    blocks = [
        _EVERYWHERE if paths[start] == paths[start : start + tile_rows][-1] else common
        for start in range(0, len(paths), tile_rows)
    ]
    return ordered + [-1] * (-len(ordered) % tile_rows), blocks


def _padded(count: int, step: int) -> int:
    step = step if count <= _FEW_ROWS else max(step, _FEW_ROWS)
    return -(-count // step) * step


def _power(count: int) -> int:
    """The power of two that holds a count."""
    return 1 << (count - 1).bit_length()
