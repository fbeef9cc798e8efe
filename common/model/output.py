"""What a forward pass has to say."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Output(Protocol):
    """Of the rows of a pass whose logits were wanted, in order."""

    @property
    def logits(self) -> Tensor:
        """`[M, V]`."""

    @property
    def states(self) -> Tensor:
        """What the output layer read: the last layer's, normed; `[M, hidden]`."""

    @property
    def likeliest(self) -> list[int] | None:
        """Token with the largest logit of each row, of equal ones the lowest, `[M]`; where the
        kernels tell it in passing."""


class Computed(NamedTuple):
    """What is there as tensors."""

    logits: Tensor
    """See `Output`."""
    states: Tensor
    """See `Output`."""
    likeliest: list[int] | None = None
    """See `Output`."""
