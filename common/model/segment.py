"""The rows one sequence puts into a batch: their positions, their slots, and what they see."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from common.model.tree import TokenTree


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
        self.runs: Sequence[Sequence[int]] = [range(len(ids))]
        """Rows of one path, at one position after another."""
        if tree is not None:
            self.runs = tree.path_cover()
        self._tree = tree

    @property
    def positions(self) -> np.ndarray:
        """Absolute position of each row, `[rows]`."""
        if self._tree is None:
            return np.arange(self.start, self.start + len(self.ids))
        return self.start + np.asarray(self._tree.depths)

    @property
    def row_slots(self) -> np.ndarray:
        """Slot of each row's own key and value, `[rows]`."""
        if len(self.runs) == 1:
            return self.slots[self.start : self.start + len(self.ids)]
        return np.asarray(self._node_slots)

    def run_start(self, run: Sequence[int]) -> int:
        """Absolute position of the first row of a run."""
        return self.start + (self._tree.depths[run[0]] if self._tree is not None else 0)

    def run_keys(self, run: Sequence[int]) -> tuple[int, Sequence[int]]:
        """Which keys the last row of a run sees.

        Returns:
            How many positions stand where `slots` says, and the slots of those behind, if any.
        """
        if run[0] == 0:
            return self.start + len(run), ()
        assert self._tree is not None
        slots = self._node_slots
        return self.start, [slots[node] for node in (0, *self._tree.path(run[-1]))]

    def run_table(self, run: Sequence[int]) -> np.ndarray:
        """Slots of the keys seen by the last row of a run, by absolute position."""
        own, behind = self.run_keys(run)
        return np.concatenate([self.slots[:own], behind]) if len(behind) else self.slots[:own]

    @cached_property
    def _node_slots(self) -> list[int]:
        assert self._tree is not None
        return tree_slots(self._tree, self.start, self.slots)


class PathRows(Segment):
    """Rows that each end a path of their own behind the same committed tokens.

    Args:
        ids: Token id of each row.
        start: Committed tokens.
        slots: Slot of each absolute position of the sequence.
        paths: Slots of the tokens between these and the row, and its own last, one list a row.
        wanted: Rows whose logits are wanted.
    """

    def __init__(
        self,
        ids: Sequence[int],
        start: int,
        slots: np.ndarray,
        paths: Sequence[Sequence[int]],
        *,
        wanted: Sequence[int],
    ) -> None:
        super().__init__(ids, start, slots, wanted=wanted)
        self.runs = [[row] for row in range(len(ids))]
        self._paths = paths

    @property
    def positions(self) -> np.ndarray:
        """See `Segment`."""
        return np.asarray([self.run_start(run) for run in self.runs])

    @property
    def row_slots(self) -> np.ndarray:
        """See `Segment`."""
        return np.asarray([path[-1] for path in self._paths])

    def run_start(self, run: Sequence[int]) -> int:
        """See `Segment`."""
        return self.start + len(self._paths[run[0]]) - 1

    def run_keys(self, run: Sequence[int]) -> tuple[int, Sequence[int]]:
        """Which keys a row sees; see `Segment`."""
        return self.start, self._paths[run[0]]


def tree_slots(tree: TokenTree, start: int, slots: np.ndarray) -> list[int]:
    """Where a tree's keys and values are written.

    The first run takes the slots of its positions, so that a chain needs no copying when it
    is accepted; other nodes take spare slots behind the deepest position.

    Args:
        tree: It.
        start: Absolute position of its root.
        slots: Slot of each absolute position of the sequence, and spare ones after.

    Returns:
        Slot of each node, `[nodes]`.
    """
    first, *others = tree.path_cover()
    spare = start + max(tree.depths) + 1
    order = [*first, *itertools.chain.from_iterable(others)]
    behind = slots[spare : spare + len(order) - len(first)].tolist()
    found = [*slots[start : start + len(first)].tolist(), *behind]
    out = [0] * len(order)
    for node, slot in zip(order, found, strict=True):
        out[node] = slot
    return out


def tree_positions(tree: TokenTree) -> int:
    """Positions a sequence must reserve from the root's on to run this tree."""
    return 1 + max(tree.depths) + len(tree) - len(tree.path_cover()[0])
