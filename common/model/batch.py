"""From sequences to one ragged batch, and the layout attention runs in.

Attention is laid out so that the bits of a row do not depend on what else is in the batch:

* a row sees its keys in canonical order: column = absolute position, with the ancestors of a
  tree node gathered by depth;
* the number of columns is `key_width(position)`, which depends on the row's position alone;
* queries go in tiles of rows, padded with copies of their first row; `TileRows` says of how many.

Rows of one tile share a list of keys, so a tile covers a stretch of one path: a run of a
prompt, a draft chain, or one run of a tree's path cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.model.kv_cache import TRASH_SLOT, ZERO_SLOT
from common.model.segment import Segment
from common.model.transfer import on_device

_SHARED_ROWS = 16
"""From this many rows over one list of keys on, the keys are gathered once for all."""

_TILE_COST = 2
"""What a tile costs by itself, in rows: converting keys, starting two products. Measured on CPU."""


@dataclass(frozen=True)
class TileRows:
    """How many query rows a tile of attention may have.

    Attributes:
        least: Fewer would take a kernel that sums in another order.
        most: More would bring nothing.
    """

    least: int
    most: int

    def fit(self, lengths: Sequence[int]) -> int:
        """The rows of a tile that cost least over stretches of these lengths, padding included."""
        longest = max(lengths)
        if longest <= self.least:
            return self.least
        even = -(-longest // -(-longest // self.most))  # the longest in equal parts
        wanted = {self.least, *(min(max(n, self.least), self.most) for n in (even, *lengths))}
        return min(
            sorted(wanted),
            key=lambda rows: sum(-(-n // rows) for n in lengths) * (rows + _TILE_COST),
        )


FIXED_TILES = TileRows(4, 4)
"""Where a kernel has to see one shape always: enough rows that its order of summation is settled
(a single float32 query takes another path), few enough to waste little on plain decoding."""


@lru_cache(maxsize=65_536)
def key_width(position: int) -> int:
    """Columns attention runs over for a row at this position: 64, 96, 128, 192, 256, 384, …"""
    width = 64
    while width <= position:
        if width + width // 2 > position:
            return width + width // 2
        width *= 2
    return width


@dataclass(frozen=True)
class Group:
    """Tiles that run in one attention call.

    Attributes:
        index: Slots of the keys, `[T, W]`; `[1, W]` where all tiles share them.
        positions: Absolute position of each query, `[T, R]`.
        tiles: T.
        rows: R, query rows of a tile.
        first: The first tile's first query in the batch.
    """

    index: Tensor
    positions: Tensor
    tiles: int
    rows: int
    first: int


@dataclass(frozen=True)
class Batch:
    """One forward pass.

    Attributes:
        ids: `[N]`.
        positions: `[N]`.
        slots: Where each row's key and value go, `[N]`.
        query_rows: Row of each query of each tile, `[Q]`; None where the rows are the queries.
        row_queries: Query that computes each row, `[N]`; None where the rows are the queries.
        groups: Attention calls.
        wanted: Rows whose logits are wanted, `[M]`.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    query_rows: Tensor | None
    row_queries: Tensor | None
    groups: tuple[Group, ...]
    wanted: Tensor


class _Stretch(NamedTuple):
    """Rows of one path whose keys have one width."""

    rows: Sequence[int]  # in the batch
    position: int  # of the first
    table: np.ndarray  # slots by position


# Lists rather than arrays below: a pass of few rows meets this code with cold caches, and what
# counts then is how many calls there are.


def build_batch(
    segments: Sequence[Segment],
    *,
    rows: int,
    device: torch.device,
    tile_rows: TileRows = FIXED_TILES,
) -> Batch:
    """Lays out one forward pass.

    Args:
        segments: What each sequence runs.
        rows: Rows to pad to; at least as many as the segments have.
        device: Where the tensors go.
        tile_rows: Rows of a tile that the model's attention can take.
    """
    ids: list[int] = []
    wanted: list[int] = []
    firsts = []
    for segment in segments:
        firsts.append(len(ids))
        wanted += [len(ids) + row for row in segment.wanted]
        ids += segment.ids
    positions = _joined([segment.positions for segment in segments])
    slots = _joined([segment.row_slots for segment in segments])
    groups: list[Group] = []
    queries: list[int] = []  # row of each
    for width, stretches in _calls(segments, firsts):
        groups.append(_group(width, stretches, tile_rows, queries, device))
    direct = queries == list(range(rows))
    pad = rows - len(ids)
    if pad:
        ids += [0] * pad
        positions = np.pad(positions, (0, pad))
        slots = np.pad(slots, (0, pad), constant_values=TRASH_SLOT)
    return Batch(
        ids=on_device(ids, device),
        positions=on_device(positions, device),
        slots=on_device(slots, device),
        query_rows=None if direct else on_device(queries, device),
        row_queries=None if direct else on_device(_first_places(queries, rows), device),
        groups=tuple(groups),
        wanted=on_device(wanted, device),
    )


def _calls(segments: Sequence[Segment], firsts: Sequence[int]) -> list[tuple[int, list[_Stretch]]]:
    """Stretches by key width; long ones, whose keys are gathered once, in calls of their own."""
    mixed: dict[int, list[_Stretch]] = {}
    own = []
    for segment, first in zip(segments, firsts, strict=True):
        for run in segment.runs:
            for width, stretch in _stretches(segment, run, first):
                if len(stretch.rows) >= _SHARED_ROWS:
                    own.append((width, [stretch]))
                else:
                    mixed.setdefault(width, []).append(stretch)
    return [*mixed.items(), *own]


def _stretches(segment: Segment, run: Sequence[int], first: int) -> Iterator[tuple[int, _Stretch]]:
    rows = [first + row for row in run]
    position, table = segment.run_start(run), segment.run_table(run)
    while rows:
        width = key_width(position)
        room = width - position
        yield width, _Stretch(rows[:room], position, table)
        rows, position = rows[room:], width


def _group(
    width: int,
    stretches: Sequence[_Stretch],
    tile_rows: TileRows,
    queries: list[int],
    device: torch.device,
) -> Group:
    """One attention call; adds the row of each of its queries."""
    height = tile_rows.fit([len(stretch.rows) for stretch in stretches])
    first = len(queries)
    positions: list[int] = []
    seen: list[np.ndarray] = []
    for rows, position, table in stretches:
        tiles = -(-len(rows) // height)
        pad, repeated = tiles * height - len(rows), (tiles - 1) * height
        queries += rows
        queries += [rows[repeated]] * pad
        positions += range(position, position + len(rows))
        positions += [position + repeated] * pad
        seen += [table[:width]] * (tiles if len(stretches) > 1 else 1)
    index = np.full((len(seen), width), ZERO_SLOT, dtype=np.int64)
    for line, slots in zip(index, seen, strict=True):
        line[: len(slots)] = slots
    count = len(positions) // height
    return Group(
        index=on_device(index, device),
        positions=on_device(positions, device).view(count, height),
        tiles=count,
        rows=height,
        first=first,
    )


def _first_places(queries: Sequence[int], rows: int) -> list[int]:
    """Where each row first stands among the queries; 0 for rows that do not."""
    places = [0] * rows
    for place in range(len(queries) - 1, -1, -1):
        places[queries[place]] = place
    return places


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
