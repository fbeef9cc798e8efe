"""What a forward pass has to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from common.model.transfer import on_device


class Output(Protocol):
    """Of the rows of a pass whose logits were wanted, in order; features of all its rows."""

    @property
    def logits(self) -> Tensor:
        """`[M, V]`."""

    @property
    def states(self) -> Tensor:
        """What the output layer read: the last layer's, normed; `[M, hidden]`."""

    @property
    def chosen(self) -> list[int] | None:
        """Token after each row, `[M]`, where the kernels choose it in passing: as they were told,
        and -1 where bits would decide that they do not have in common with others."""

    @property
    def features(self) -> Tensor | None:
        """What entered the layers that are tapped, un-normed, and of the tap behind the last one
        what `states` has; side by side, of each row as the segments have them,
        `[N, taps * hidden]` in the model's type; None where none is."""


class Computed(NamedTuple):
    """What is there as tensors."""

    logits: Tensor
    """See `Output`."""
    states: Tensor
    """See `Output`."""
    chosen: list[int] | None = None
    """See `Output`."""
    features: Tensor | None = None
    """See `Output`; from a `Forward` those of rows that are padding, too."""


def rows_of(found: Tensor, at: Sequence[int]) -> Tensor:
    """Rows of what a pass found, not copied where they follow each other. # [N, W] -> [M, W]

    Logits of a large vocabulary are much to copy, and torch does it by several threads: where
    processors are busy, one that waits for another took a hundred times as long as numpy's one.
    """
    first = at[0] if at else 0
    if [*at] == [*range(first, first + len(at))]:
        return found[first : first + len(at)]
    if found.device.type != "cpu":
        return found.index_select(0, on_device(at, found.device))
    known = torch.int16 if found.dtype == torch.bfloat16 else found.dtype  # to numpy
    return torch.from_numpy(found.view(known).numpy().take(at, axis=0)).view(found.dtype)
