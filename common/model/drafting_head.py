"""A head that drafts behind texts from states of the model that it belongs to, depth by depth.

Owns what every such head is to the verifier, whose trees its guesses become. A wrong guess costs
speed, never text, so nothing of a head has to be bit-equal between batch sizes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from common.model.likeliest import likeliest
from common.model.roll import Drawing
from common.model.transfer import fetched

MOST_DEPTH = 16
"""Tokens that a draft may have behind each other."""

MOST_DRAFTED = 1024
"""Rows that a draft may have, all depths of all texts together."""


Known = TypeVar("Known")
"""What a head has to know of a text to draft behind it."""

_FOLLOWED = 4
"""Guesses of a depth, on a device, which is not kept busy by single rows."""


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


def followed(device: torch.device) -> int:
    """See `DraftingHead`, of one that runs through torch."""
    return 1 if device.type == "cpu" else _FOLLOWED


class DraftingHead(ABC, Generic[Known]):
    """A head ready to draft.

    Attributes:
        followed: Guesses of a depth that a text's draft is to go on from: more than one where
            further rows take no time.
        rolls: Whether `roll` is there.

    Args:
        ids: The target's ids of the W tokens that it can guess; None where they are all.
        vocab_size: Of the target, V.
    """

    followed = 1
    rolls = False

    def __init__(self, ids: Tensor | None, *, vocab_size: int) -> None:
        self._ids, self._vocab_size = ids, vocab_size

    def groups(self, texts: Sequence[Known]) -> list[list[int]]:
        """Texts that are best drafted behind together, one group after another.

        Args:
            texts: At least one.

        Returns:
            Numbers of texts, each in one group: all in one, where memory does not hang on it.
        """
        return [[*range(len(texts))]]

    @abstractmethod
    def draft(self, texts: Sequence[Known]) -> Draft:
        """Begins to draft behind texts.

        Args:
            texts: At least one.
        """

    def roll(self, texts: Sequence[Known], going: Going) -> list[Guessed]:
        """Drafts behind texts in one call.

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
