"""From sequences to one ragged batch: rows, slots, and the layout attention runs in.

Attention is laid out so that the bits of a row do not depend on what else is in the batch:

* a row sees its keys in canonical order: column = absolute position, with the ancestors of a
  tree node gathered by depth;
* the number of columns is `key_width(position)`, which depends on the row's position alone;
* queries go in tiles of exactly `QUERY_ROWS` rows, padded with copies of their first row.

Rows of one tile share a list of keys, so a tile covers a stretch of one path: a run of a
prompt, a draft chain, or one run of a tree's path cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from common.model.kv_cache import TRASH_SLOT, ZERO_SLOT
from common.model.tree import TokenTree

QUERY_ROWS = 4
"""Query rows of one attention call: enough that the kernel's summation order is settled
(a single float32 query takes another path), few enough to waste little on plain decoding."""

_SHARED_TILES = 4
"""From this many tiles over one list of keys on, the keys are gathered once for all."""


@lru_cache(maxsize=65_536)
def key_width(position: int) -> int:
    """Columns attention runs over for a row at this position: 64, 96, 128, 192, 256, 384, …"""
    width = 64
    while width <= position:
        if width + width // 2 > position:
            return width + width // 2
        width *= 2
    return width


class Segment:
    """The rows one sequence puts into a batch.

    Args:
        ids: Token id of each row, in order of position; for a tree, of each node.
        start: Absolute position of the first row.
        slots: Slot of each absolute position of the sequence, and spare ones after.
        tree: Set where the rows are a tree; row i is then node i.
        wanted: Rows whose logits are wanted.
    """

    def __init__(
        self,
        ids: Sequence[int],
        start: int,
        slots: np.ndarray,
        *,
        wanted: Sequence[int],
        tree: TokenTree | None = None,
    ) -> None:
        self.ids, self.start, self.slots, self.wanted = ids, start, slots, wanted
        n = len(ids)
        if tree is None:
            self.runs = [list(range(n))]
            self.positions = np.arange(start, start + n)
            self.row_slots = slots[start : start + n]
            return
        self.runs = tree.path_cover()
        self.positions = start + np.asarray(tree.depths)
        self.row_slots = tree_slots(tree, self.runs, start, slots)
        self._tree = tree

    def run_table(self, run: Sequence[int]) -> np.ndarray:
        """Slots of the keys seen by the last row of a run, by absolute position."""
        if run[0] == 0:
            return self.slots[: self.positions[run[-1]] + 1]
        path = [0, *self._tree.path(run[-1])]
        return np.concatenate([self.slots[: self.start], self.row_slots[path]])


class PathRows(Segment):
    """Rows that each end a path of their own behind the same committed tokens.

    Args:
        ids: Token id of each row.
        slots: Slot of each absolute position of the committed tokens, `[positions]`.
        paths: Slots of the tokens between these and the row, and its own last, one list a row.
        wanted: Rows whose logits are wanted.
    """

    def __init__(
        self,
        ids: Sequence[int],
        slots: np.ndarray,
        paths: Sequence[Sequence[int]],
        *,
        wanted: Sequence[int],
    ) -> None:
        self.ids, self.slots, self.wanted = ids, slots, wanted
        self.runs = [[row] for row in range(len(ids))]
        self.positions = np.asarray([len(slots) + len(path) - 1 for path in paths])
        self.row_slots = np.asarray([path[-1] for path in paths])
        self._paths = paths

    def run_table(self, run: Sequence[int]) -> np.ndarray:
        """Slots of the keys seen by a row, by absolute position."""
        return np.concatenate([self.slots, self._paths[run[0]]])


def tree_slots(
    tree: TokenTree, runs: Sequence[Sequence[int]], start: int, slots: np.ndarray
) -> np.ndarray:
    """Where a tree's keys and values are written.

    The first run takes the slots of its positions, so that a chain needs no copying when it
    is accepted; other nodes take spare slots behind the deepest position.

    Returns:
        Slot of each node, `[nodes]`.
    """
    out = np.empty(len(tree), dtype=np.int64)
    out[runs[0]] = slots[start : start + len(runs[0])]
    spare = start + max(tree.depths) + 1
    for run in runs[1:]:
        out[run] = slots[spare : spare + len(run)]
        spare += len(run)
    return out


def tree_positions(tree: TokenTree) -> int:
    """Positions a sequence must reserve from the root's on to run this tree."""
    return 1 + max(tree.depths) + len(tree) - len(tree.path_cover()[0])


@dataclass(frozen=True)
class Group:
    """Tiles that run in one attention call.

    Attributes:
        index: Slots of the keys, `[T, W]`; `[1, W]` where all tiles share them.
        positions: Absolute position of each query, `[T, QUERY_ROWS]`.
        tiles: T.
        first: Index of the first tile in the batch.
    """

    index: Tensor
    positions: Tensor
    tiles: int
    first: int


@dataclass(frozen=True)
class Batch:
    """One forward pass.

    Attributes:
        ids: `[N]`.
        positions: `[N]`.
        slots: Where each row's key and value go, `[N]`.
        query_rows: Row of each query of each tile, `[tiles * QUERY_ROWS]`.
        row_queries: Query that computes each row, `[N]`.
        groups: Attention calls.
        wanted: Rows whose logits are wanted, `[M]`.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    query_rows: Tensor
    row_queries: Tensor
    groups: tuple[Group, ...]
    wanted: Tensor


@dataclass(frozen=True)
class _Tile:
    rows: np.ndarray  # [n <= QUERY_ROWS], in the batch
    positions: np.ndarray  # the same rows
    table: np.ndarray  # slots by position


def build_batch(segments: Sequence[Segment], *, rows: int, device: torch.device) -> Batch:
    """Lays out one forward pass.

    Args:
        segments: What each sequence runs.
        rows: Rows to pad to; at least as many as the segments have.
        device: Where the tensors go.
    """
    ids = np.concatenate([np.asarray(s.ids, dtype=np.int64) for s in segments])
    positions = np.concatenate([s.positions for s in segments])
    slots = np.concatenate([s.row_slots for s in segments])
    firsts = np.cumsum([0, *(len(s.ids) for s in segments[:-1])])  # row of each segment's first
    wanted = [
        int(first) + row for first, s in zip(firsts, segments, strict=True) for row in s.wanted
    ]
    grouped = _group(segments, firsts)
    count = sum(len(tiles) for _, tiles in grouped)
    query_rows = np.zeros((count, QUERY_ROWS), dtype=np.int64)
    row_queries = np.zeros(len(ids), dtype=np.int64)
    groups, first = [], 0
    for width, tiles in grouped:
        shared = all(tile.table is tiles[0].table for tile in tiles)
        index = np.full((1 if shared else len(tiles), width), ZERO_SLOT, dtype=np.int64)
        queries = np.empty((len(tiles), QUERY_ROWS), dtype=np.int64)
        for t, tile in enumerate(tiles):
            n = len(tile.rows)
            query_rows[first + t] = tile.rows[0]
            query_rows[first + t, :n] = tile.rows
            queries[t] = tile.positions[0]
            queries[t, :n] = tile.positions
            row_queries[tile.rows] = (first + t) * QUERY_ROWS + np.arange(n)
            if t == 0 or not shared:
                seen = tile.table[:width]
                index[t, : len(seen)] = seen
        groups.append(Group(_to(index, device), _to(queries, device), len(tiles), first))
        first += len(tiles)
    pad = rows - len(ids)
    if pad:
        ids, positions, row_queries = (np.pad(a, (0, pad)) for a in (ids, positions, row_queries))
        slots = np.pad(slots, (0, pad), constant_values=TRASH_SLOT)
    return Batch(
        ids=_to(ids, device),
        positions=_to(positions, device),
        slots=_to(slots, device),
        query_rows=_to(query_rows.reshape(-1), device),
        row_queries=_to(row_queries, device),
        groups=tuple(groups),
        wanted=_to(np.asarray(wanted, dtype=np.int64), device),
    )


def _group(segments: Sequence[Segment], firsts: np.ndarray) -> list[tuple[int, list[_Tile]]]:
    """Tiles by key width; long stretches over one list of keys in groups of their own."""
    mixed: dict[int, list[_Tile]] = {}
    own = []
    for segment, first in zip(segments, firsts, strict=True):
        for run in segment.runs:
            table = segment.run_table(run)
            for width, tiles in _tiles(segment, run, int(first), table).items():
                if len(tiles) >= _SHARED_TILES:
                    own.append((width, tiles))
                else:
                    mixed.setdefault(width, []).extend(tiles)
    return [*mixed.items(), *own]


def _tiles(
    segment: Segment, run: Sequence[int], first: int, table: np.ndarray
) -> dict[int, list[_Tile]]:
    rows, positions = np.asarray(run) + first, segment.positions[run]
    out: dict[int, list[_Tile]] = {}
    begin = 0
    while begin < len(rows):
        width = key_width(int(positions[begin]))
        end = min(begin + QUERY_ROWS, begin + width - int(positions[begin]), len(rows))
        tile = _Tile(rows[begin:end], positions[begin:end], table)
        out.setdefault(width, []).append(tile)
        begin = end
    return out


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
