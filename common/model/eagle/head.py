"""An EAGLE-3 head (Li et al., 2025) that drafts: one decoder layer over the target's own states.

At position i the head reads the target's residual stream at a few layers, and the token at i + 1:

    x = fc(taps);  a = [norm(e), norm(x)];  r = x + attention(a);  out = r + mlp(norm(r))
    logits of the token at i + 2 = lm norm(out)

Where the target has not been yet, `out` stands for x, and the token is one of the head's own
guesses. Keys and values of true rows lie in a layer of the target's own cache, at the slots of
their positions, so that a cached prefix serves the head, too. Those of drafted rows are forgotten.

`through_torch` and `compiled` compute it, files are `checkpoint`'s.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from common.model.drafting_head import MOST_DRAFTED, DraftingHead
from common.model.eagle.weights import EagleWeights
from common.model.kv_cache import LayerShape


class Behind(NamedTuple):
    """A text that is drafted behind, and its latest rows, whose keys are not in the cache."""

    states: Tensor
    """The target's at the taps, of at least one row, `[n, taps * t]`."""
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


class EagleHead(DraftingHead[Behind]):
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

    @staticmethod
    def layer(weights: EagleWeights) -> LayerShape:
        """The cache's layer for a head."""
        return LayerShape(
            weights.kv_heads, weights.head_size, weights.head_size, spare=MOST_DRAFTED
        )

    @abstractmethod
    def write(self, texts: Sequence[Behind]) -> None:
        """Puts the keys of rows into the cache, behind which nothing is drafted now.

        Args:
            texts: At least one.
        """
