"""Where the decoder reads and writes, found with few calls.

A pass sweeps the caches, so what is done between two of them is as slow as the code and the objects
that have to come back are many: to allocate a tensor or to ask numpy for an address costs more than
another row of the pass does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_MOST_ADDRESSES, _MOST_BYTES = 256, 1 << 24
"""Of arrays that are kept: a text that grows has a new one of all its slots with every block."""

_KEPT_ROWS = 64
"""Room for more is given back once a pass wants less than a quarter of it."""


class Addresses:
    """Where arrays lie that come again and again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[np.ndarray, int]] = {}  # kept, so that no other has its id
        self._bytes = 0  # of those

    def of(self, array: np.ndarray) -> int:
        """Where an array's numbers begin."""
        known = self._known.get(id(array))
        if known is None:
            self._bytes += array.nbytes
            if len(self._known) >= _MOST_ADDRESSES or self._bytes > _MOST_BYTES:
                self._known.clear()
                self._bytes = array.nbytes
            known = self._known[id(array)] = array, address(array)
        return known[1]


class Room:
    """What a pass writes of its wanted rows.

    Args:
        rows: How many there is room for.
        vocab_size: Logits of each.
        hidden: Numbers of each state.
        dtype: Of states.
    """

    def __init__(self, rows: int, vocab_size: int, hidden: int, dtype: torch.dtype) -> None:
        self.rows = rows
        """How many there is room for."""
        self.least = 0 if rows <= _KEPT_ROWS else -(-rows // 4)
        """For fewer it is given back."""
        self._logits = torch.empty(rows, vocab_size).numpy()
        self.states = torch.empty(rows, hidden, dtype=dtype)
        """`[rows, hidden]`."""
        self.logits_at, self.states_at = address(self._logits), self.states.data_ptr()
        """Where they begin."""
        self.shown: Callable[[], np.ndarray | None] = lambda: None
        """What somebody has of the logits."""

    def logits(self, rows: int) -> Tensor:
        """Those of so many rows, `[rows, V]`."""
        shown = self._logits[:rows]  # whatever is made of it keeps it
        self.shown = weakref.ref(shown)
        return torch.from_numpy(shown)


class Written:
    """What a pass wrote. An `Output`.

    Args:
        room: Where it wrote.
        rows: How many rows.
    """

    _logits: Tensor | None = None
    _states: Tensor | None = None

    def __init__(self, room: Room, rows: int) -> None:
        self._room, self._rows = room, rows
        self.chosen: list[int] | None = None
        """See `Output`."""
        self.features: Tensor | None = None
        """See `Output`; room of its own, which it keeps."""

    @property
    def logits(self) -> Tensor:
        """See `Output`."""
        if self._logits is None:
            self._logits = self._room.logits(self._rows)
        return self._logits

    @property
    def states(self) -> Tensor:
        """See `Output`; a copy, for drafting heads keep some until the next pass."""
        if self._states is None:
            self._states = self._room.states[: self._rows].clone()
        return self._states


class Rooms:
    """Room for one pass after the other: the same again where nobody can tell.

    The system gives and takes what is as large as many rows of a large vocabulary page by page,
    which takes longer than a small model's pass.

    Args:
        vocab_size: Logits of a row.
        hidden: Numbers of its state; 0 where nobody wants that.
        dtype: Of states.
    """

    def __init__(self, vocab_size: int, hidden: int, dtype: torch.dtype) -> None:
        self._what = vocab_size, hidden, dtype
        self._kept: Room | None = None
        self._last: Callable[[], Written | None] = lambda: None  # what was written there

    def take(self, rows: int) -> tuple[Room, Written]:
        """Room for so many rows, and what will have been written there."""
        room = self._kept
        if (
            room is None
            or not room.least <= rows <= room.rows
            or room.shown() is not None
            or self._last() is not None
        ):
            room = self._kept = None  # there are never two of its own
            room = self._kept = Room(max(rows, 1), *self._what)
        written = Written(room, rows)
        self._last = weakref.ref(written)
        return room, written


def address(array: np.ndarray) -> int:
    """Where an array's numbers begin."""
    found: int = array.__array_interface__["data"][0]
    return found
