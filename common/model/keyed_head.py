"""A drafting head that has keys of its own, in a layer of its model's cache.

At position i it reads what the model leaves there, and the token at i + 1. Keys and values of such
rows lie at the slots of their positions, so that a cached prefix serves the head, too. Those of
drafted rows, which are made of what the head leaves itself, are forgotten.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from common.model.drafting_head import DraftingHead


class Behind(NamedTuple):
    """A text that is drafted behind, and its latest rows, whose keys are not in the cache."""

    states: Tensor
    """The model's at what it is tapped at, of at least one row, `[n, taps * t]`."""
    tokens: Sequence[int]
    """The token after each row, `[n]`."""
    position: int
    """Of the first row."""
    slots: np.ndarray
    """Slot of each position, int64 `[position + n]` or more; `ZERO_SLOT` for positions before these
    rows that the head has not been shown. To compiled heads, whose keys stand at their positions,
    those are keys of zeros, which take a little of its attention; to others they are not there."""

    @property
    def end(self) -> int:
        """Position behind the last row."""
        return self.position + len(self.tokens)


class KeyedHead(DraftingHead[Behind]):
    """A head ready to draft, which puts the keys of the rows that it is given into the cache first.

    Args:
        ids: The target's ids of the W tokens that it can guess; None where they are all.
        vocab_size: Of the target, V.
        slots: Of its layer of the cache, but for the spare ones.
    """

    def __init__(self, ids: Tensor | None, *, vocab_size: int, slots: int) -> None:
        super().__init__(ids, vocab_size=vocab_size)
        self.slots = slots
        """See the arguments."""

    @abstractmethod
    def write(self, texts: Sequence[Behind]) -> None:
        """Puts the keys of rows into the cache, behind which nothing is drafted now.

        Args:
            texts: At least one.
        """
