"""The array that tells CUDA kernels which keys a row sees: what `Segment.run_table` says."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.model.cuda.keys import (
    KEYS,
    LONG_BLOCKS,
    ROW_SECTIONS,
    SHORT_BLOCKS,
    SHORT_STRETCHES,
    lay_out,
    section,
    stretches,
)
from common.model.cuda.reference import row_slots
from common.model.kv_cache import TRASH_SLOT
from common.model.segment import PathRows, Segment
from tests.unit.common.model.batches import PAGE, segments


@given(segments(), st.sampled_from([1, 2, 5, 16]), st.sampled_from([1, 16, 64]))
def test_every_row_sees_the_keys_of_its_path(
    batch: list[Segment], tile_rows: int, row_step: int
) -> None:
    keys = lay_out(batch, page=PAGE, tile_rows=tile_rows, row_step=row_step)
    words, size = torch.from_numpy(keys.words), keys.size
    first = 0
    wanted: list[int] = []
    tables = {}
    for part in batch:
        for run in part.runs:
            for row in run:
                table = part.run_table(run)[: part.positions[row] + 1]
                tables[first + row] = table.tolist()
                assert row_slots(words, size, first + row, PAGE).tolist() == table.tolist()
        rows = slice(first, first + len(part.ids))
        for name, expected in (
            ("ids", part.ids),
            ("positions", part.positions),
            ("slots", part.row_slots),
        ):
            assert section(words, size, name)[rows].tolist() == list(expected)
        wanted += [first + row for row in part.wanted]
        first += len(part.ids)
    assert section(words, size, "wanted")[: keys.wanted].tolist() == wanted
    assert (section(words, size, "slots")[first:] == TRASH_SLOT).all()
    assert size.rows % row_step == size.wanted % row_step == 0
    assert keys.wanted <= size.wanted <= size.rows
    _check_tiles(words[len(ROW_SECTIONS) * size.rows :], size.tiles, tile_rows, tables)


def _check_tiles(
    words: torch.Tensor, tiles: int, tile_rows: int, tables: dict[int, list[int]]
) -> None:
    """Each row is in one tile, and tiles agree as far as they say."""
    members = words[: tiles * tile_rows].view(tiles, tile_rows).tolist()
    common = words[tiles * tile_rows :][:tiles].tolist()
    assert sorted(row for tile in members for row in tile if row >= 0) == sorted(tables)
    for tile, blocks in zip(members, common, strict=True):
        seen = [tables[row] for row in tile if row >= 0]
        assert all(row < 0 for row in tile[len(seen) :]), "rows stand first"
        for one in seen:
            for other in seen:
                both = min(len(one), len(other), blocks * KEYS)
                assert one[:both] == other[:both]


@given(st.integers(0, 200_000))
def test_stretches_are_as_many_as_a_row_needs(position: int) -> None:
    bounds = [0]
    while bounds[-1] <= position:
        short = len(bounds) <= SHORT_STRETCHES
        bounds.append(bounds[-1] + KEYS * (SHORT_BLOCKS if short else LONG_BLOCKS))
    assert stretches(position) == len(bounds) - 1


def test_equal_loads_have_one_size() -> None:
    """A text that grows is the same graph for a while."""
    slots = np.arange(PAGE, 40 * PAGE)
    sizes = {
        lay_out([Segment([1], at, slots, wanted=[0])], page=PAGE, tile_rows=4, row_step=64).size
        for at in range(256, 512)
    }
    assert len(sizes) == 1


def test_rows_that_each_end_a_path_share_no_tail() -> None:
    known = np.arange(PAGE, PAGE + 70)
    part = PathRows([1, 2], len(known), known, [[300], [400, 401]], wanted=[0, 1])
    keys = lay_out([part], page=PAGE, tile_rows=4, row_step=1)
    words = torch.from_numpy(keys.words)
    assert row_slots(words, keys.size, 0, PAGE).tolist() == [*known, 300]
    assert row_slots(words, keys.size, 1, PAGE).tolist() == [*known, 400, 401]
