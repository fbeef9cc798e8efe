"""The layout of a pass: every row has its query, its keys and its mask, whatever the tiles."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.attention import AttentionContext
from common.model.batch import Batch, Group, TileRows, build_batch, key_width
from common.model.kv_cache import TRASH_SLOT
from common.model.segment import Segment
from common.model.tree import TokenTree

CPU = torch.device("cpu")

tile_rows = st.builds(
    lambda least, more: TileRows(least, least + more), st.integers(1, 5), st.integers(0, 9)
)


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Chunks of prompts and random trees of some sequences, each with slots of its own."""
    out = []
    for sequence in range(draw(st.integers(1, 4))):
        start = draw(st.sampled_from([0, 1, 60, 63, 64, 95, 200]))
        slots = 10_000 * (sequence + 1) + np.random.default_rng(sequence).permutation(400)
        if draw(st.booleans()):
            rows = draw(st.integers(1, 90))
            ids = [draw(st.integers(0, 99))] * rows
            out.append(Segment(ids, start, slots, wanted=[rows - 1]))
            continue
        tree = TokenTree(1)
        for _ in range(draw(st.integers(0, 12))):
            tree.add(draw(st.integers(0, len(tree) - 1)), draw(st.integers(2, 9)))
        out.append(Segment(tree.ids, start, slots, tree=tree, wanted=range(len(tree))))
    return out


def _places(batch: Batch) -> dict[int, tuple[Group, int, int]]:
    """Where each row's own query stands: group, tile, query of the tile."""
    total = sum(group.tiles * group.rows for group in batch.groups)
    asked = list(range(total)) if batch.row_queries is None else batch.row_queries.tolist()
    found = {}
    for row, query in enumerate(asked):
        group = next(g for g in reversed(batch.groups) if g.first <= query)
        tile, place = divmod(query - group.first, group.rows)
        assert tile < group.tiles
        found[row] = group, tile, place
    return found


@settings(max_examples=150)
@given(segments(), tile_rows, st.integers(0, 5))
def test_every_row_is_computed_where_its_keys_are(
    parts: list[Segment], tiles: TileRows, pad: int
) -> None:
    rows = sum(len(part.ids) for part in parts)
    batch = build_batch(parts, rows=rows + pad, device=CPU, tile_rows=tiles)
    assert batch.ids.shape == batch.positions.shape == batch.slots.shape == (rows + pad,)
    assert batch.slots[rows:].tolist() == [TRASH_SLOT] * pad
    places, row = _places(batch), 0
    for part in parts:
        for run in part.runs:
            for node in run:
                group, tile, place = places[row + node]
                position = int(part.positions[node])
                assert int(group.positions[tile, place]) == position
                if batch.query_rows is not None:
                    query = group.first + tile * group.rows + place
                    assert int(batch.query_rows[query]) == row + node
                keys = group.index[0 if len(group.index) == 1 else tile]
                assert len(keys) == key_width(position)
                expected = part.run_table([*run])[: position + 1]
                assert keys[: position + 1].tolist() == expected.tolist()
        row += len(part.ids)
    assert all(tiles.least <= group.rows <= max(tiles.least, tiles.most) for group in batch.groups)


@given(st.lists(st.integers(1, 80), min_size=1, max_size=9), tile_rows)
def test_tiles_keep_to_their_limits_and_fit_stretches_of_one_length(
    lengths: list[int], tiles: TileRows
) -> None:
    assert tiles.least <= tiles.fit(lengths) <= tiles.most
    if tiles.least <= lengths[0] <= tiles.most:
        assert tiles.fit(lengths[:1] * 3) == lengths[0]


@given(segments(), tile_rows, st.sampled_from([None, 1, 5, 40, 500]), st.integers(1, 3))
def test_masks_say_column_up_to_position_and_within_the_window(
    parts: list[Segment], tiles: TileRows, window: int | None, repeat: int
) -> None:
    rows = sum(len(part.ids) for part in parts)
    batch = build_batch(parts, rows=rows, device=CPU, tile_rows=tiles)
    context = AttentionContext()
    context.begin(batch)
    for group in batch.groups:
        mask = context.mask(group, repeat, window, torch.float32)
        columns = torch.arange(group.index.shape[1])
        positions = group.positions[:, None, :, None]
        seen = columns <= positions
        if window is not None:
            seen &= columns > positions - window
        seen = seen.repeat(1, 1, repeat, 1)
        assert mask.shape == seen.shape
        assert torch.equal(mask == 0, seen)
        assert torch.equal(mask == float("-inf"), ~seen)
