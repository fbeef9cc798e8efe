"""An EAGLE-3 head (Li et al., 2025) that drafts: one decoder layer over the target's own states.

At position i the head reads the target's residual stream at a few layers, and the token at i + 1:

    x = fc(taps);  a = [norm(e), norm(x)];  r = x + attention(a);  out = r + mlp(norm(r))
    logits of the token at i + 2 = lm norm(out)

Where the target has not been yet, `out` stands for x, and the token is one of the head's own
guesses. Keys and values of true rows lie in a layer of the target's own cache, at the slots of
their positions, so that a cached prefix serves the head, too. Those of drafted rows are forgotten.

Owns what every head is to the verifier; `through_torch` and `compiled` compute it, files are
`checkpoint`'s, and trees of guesses the verifier's. A wrong guess costs speed, never text, so
nothing here has to be bit-equal between batch sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from common.model.eagle.weights import EagleWeights
from common.model.kv_cache import LayerShape
from common.model.likeliest import likeliest
from common.model.roll import Drawing
from common.model.transfer import fetched

MOST_DEPTH = 16
"""Tokens that a draft may have behind each other."""

MOST_DRAFTED = 1024
"""Rows that a draft may have, all depths of all texts together."""


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


class Draft(Protocol):
    """Guesses behind several texts, depth by depth."""

    logits: Tensor
    """Of the tokens after those behind each text's last row, float32 `[S, W]`."""

    def further(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits one depth on.

        Args:
            parents: Rows of the last depth that are followed, rising. # [R]
            tokens: By what. # [R]

        Returns:
            Of the tokens after those, float32. # [R, W]
        """


Guessed = tuple[list[Sequence[int]], list[Sequence[float]]]
"""Ids that rows guess, and their chances, likeliest first, `[N, k]` each."""


class Going(NamedTuple):
    """How a draft goes on from the likeliest guess behind each of S texts, and how far.

    A guess counts for its chance and those of all before it of its text, multiplied.
    """

    ranks: int
    """Guesses to tell of a row."""
    factors: Sequence[Sequence[float]]
    """What chances are multiplied by, by depth, `[S, D]`."""
    tokens: Sequence[int]
    """That a text's draft may have behind each other, `[S]`."""
    least: float
    """What a guess that is gone on from counts for, at least."""
    prices: Sequence[float]
    """Of another depth, `[D]`: where all that would be gone on from count for no more than it, and
    the price of their rows, of all that was guessed so far, one of each text before it included,
    nothing is."""
    row_prices: Sequence[float]
    """Of each row of it, `[D]`."""
    drawings: Sequence[Drawing] = ()
    """How the first token that is guessed is drawn, and further ones at the positions that follow,
    `[S]`; by the likeliest where there is no temperature, and everywhere where there are none."""


class EagleHead(ABC):
    """A head ready to draft.

    Attributes:
        followed: Guesses of a depth that a text's draft is to go on from: more than one where
            further rows take no time.
        rolls: Whether `roll` is there.

    Args:
        ids: The target's ids of the W tokens that it can guess; None where they are all.
        vocab_size: Of the target, V.
        slots: Of its layer of the cache, but for the spare ones.
    """

    followed = 1
    rolls = False

    def __init__(self, ids: Tensor | None, *, vocab_size: int, slots: int) -> None:
        self._ids, self._vocab_size = ids, vocab_size
        self.slots = slots
        """See the arguments."""

    @staticmethod
    def layer(weights: EagleWeights) -> LayerShape:
        """The cache's layer for a head."""
        return LayerShape(
            weights.kv_heads, weights.head_size, weights.head_size, spare=MOST_DRAFTED
        )

    def groups(self, texts: Sequence[Behind]) -> list[list[int]]:
        """Texts that are best drafted behind together, one group after another.

        Args:
            texts: At least one.

        Returns:
            Numbers of texts, each in one group: all in one, where memory does not hang on it.
        """
        return [[*range(len(texts))]]

    @abstractmethod
    def write(self, texts: Sequence[Behind]) -> None:
        """Puts the keys of rows into the cache, behind which nothing is drafted now.

        Args:
            texts: At least one.
        """

    @abstractmethod
    def draft(self, texts: Sequence[Behind]) -> Draft:
        """Puts the keys of rows into the cache, and begins to draft behind them.

        Args:
            texts: At least one.
        """

    def roll(self, texts: Sequence[Behind], going: Going) -> list[Guessed]:
        """Puts the keys of rows into the cache, and drafts behind them in one call.

        Args:
            texts: At least one. # [S]
            going: How, and how far.

        Returns:
            Of each depth, ids -1 where a text has no more guesses. # [S, ranks] each
        """
        raise NotImplementedError

    @torch.inference_mode()
    def spread(self, logits: Tensor) -> Tensor:
        """Logits of all tokens, of those that it can guess. # [N, W] -> [N, V]"""
        if self._ids is None:
            return logits
        every = logits.new_full((len(logits), self._vocab_size), -torch.inf)
        return every.index_copy_(1, self._ids, logits)

    def narrow(self, logits: Tensor) -> Tensor:
        """Those of the tokens that it can guess, of all. # [N, V] -> [N, W]"""
        return logits if self._ids is None else logits.index_select(1, self._ids)

    @torch.inference_mode()
    def top(self, logits: Tensor, k: int) -> Guessed:
        """The likeliest tokens by logits of those that it can guess. # [N, W]

        Returns:
            The target's ids, and probabilities, likeliest first. # [N, k] each
        """
        found, chances = likeliest(logits, min(k, logits.shape[1]))
        if self._ids is not None:
            found = self._ids[found]
        ids, said = fetched(found, chances)
        return ids.tolist(), said.tolist()
