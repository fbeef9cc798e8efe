"""Batches of every kind that the engine runs."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import strategies as st

from common.model.segment import PathRows, Segment, tree_positions
from common.model.tree import TokenTree

PAGE = 16
PAGES = 200
"""Of the cache; the first is padding."""

_MOST_SEGMENTS, _MOST_POSITION = 4, 150


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Chains, some in two pieces, trees and rows of paths of their own; some begin with pages of
    another."""
    free = [*range(1, PAGES)]
    random.Random(draw(st.integers(0, 1 << 32))).shuffle(free)  # to draw each takes longer than all
    batch = []
    for _ in range(draw(st.integers(1, _MOST_SEGMENTS))):
        start = draw(st.integers(1, _MOST_POSITION))
        kind = draw(st.sampled_from(["chain", "pieces", "tree", "paths"]))
        if kind == "pieces":
            first, second = draw(st.integers(1, 6)), draw(st.integers(1, 6))
            table, free = _lease(free, start + first + second)
            for at, rows in ((start, first), (start + first, second)):
                ids = draw(st.lists(st.integers(0, 98), min_size=rows, max_size=rows))
                batch.append(Segment(ids, at, table, wanted=draw(_some(rows))))
        elif kind == "chain":
            rows = draw(st.integers(1, 12))
            table, free = _lease(free, start + rows)
            ids = draw(st.lists(st.integers(0, 98), min_size=rows, max_size=rows))
            batch.append(Segment(ids, start, table, wanted=draw(_some(rows))))
        elif kind == "tree":
            tree = TokenTree(draw(st.integers(0, 98)))
            for _ in range(draw(st.integers(0, 8))):
                tree.add(draw(st.integers(0, len(tree) - 1)), draw(st.integers(0, 98)))
            table, free = _lease(free, start + tree_positions(tree))
            batch.append(Segment(tree.ids, start, table, tree=tree, wanted=draw(_some(len(tree)))))
        else:
            rows = draw(st.integers(1, 4))
            table, free = _lease(free, start)
            spare, free = _lease(free, 6 * rows)
            lengths = [draw(st.integers(1, 6)) for _ in range(rows)]
            paths = [spare[6 * row : 6 * row + n].tolist() for row, n in enumerate(lengths)]
            ids = [draw(st.integers(0, 98)) for _ in range(rows)]
            batch.append(PathRows(ids, start, table, paths, wanted=draw(_some(rows))))
        forked = draw(st.sampled_from([0, *range(1, batch[-1].start // PAGE + 1)]))
        if forked:
            own, free = _lease(free, PAGE)
            table = np.concatenate([batch[-1].slots[: forked * PAGE], own])
            batch.append(Segment([draw(st.integers(0, 98))], forked * PAGE, table, wanted=[0]))
    return batch


def _some(rows: int) -> st.SearchStrategy[list[int]]:
    """All of so many rows, or some of them in any order."""
    return st.just([*range(rows)]) | st.lists(st.integers(0, rows - 1), unique=True)


def _lease(free: list[int], positions: int) -> tuple[np.ndarray, list[int]]:
    """Slots of so many positions and more, and the pages that are left."""
    count = -(-positions // PAGE)
    pages = np.asarray(free[:count])
    return (pages[:, None] * PAGE + np.arange(PAGE)).ravel(), free[count:]
