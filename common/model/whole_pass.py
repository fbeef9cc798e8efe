"""What a model of our kernels is to the engine: batches in, and what passes compute out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike

from common.model.kv_cache import LayerShape
from common.model.output import Output
from common.model.roll import Drawing, Rolled, RollOptions
from common.model.segment import Segment


class WholePass(ABC):
    """A model that lays a batch out as it needs it, and computes a pass in one call.

    Attributes:
        rolls: Whether `roll` is there; it follows all of a drawing, also what changes logits.
        tells: Whether `levels` is there.
        chooses: Whether passes choose the tokens after wanted rows, as drawings say.
    """

    rolls = False
    tells = False
    chooses = False

    @property
    @abstractmethod
    def shapes(self) -> dict[int, LayerShape]:
        """Of the cache, by layer."""

    @abstractmethod
    def __call__(self, segments: Sequence[Segment], drawings: Sequence[Drawing] = ()) -> Output:
        """Computes rows.

        Args:
            segments: At least one row; their slots are reserved and distinct.
            drawings: How tokens after wanted rows are drawn, where `chooses`;
                none where all are the likeliest.

        Returns:
            Of the wanted rows.
        """

    @abstractmethod
    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies keys and values of its layers between slots; see `Runner.move`."""

    def roll(self, segments: Sequence[Segment], slots: ArrayLike, options: RollOptions) -> Rolled:
        """Several passes in one call; see `Runner.roll`."""
        raise NotImplementedError

    def levels(
        self,
        segments: Sequence[Segment],
        slots: ArrayLike,
        options: RollOptions,
        enough: Callable[[], bool],
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """As `roll`, but each pass is told of while the next one runs; see `Runner.levels`.

        Yields:
            What `Rolled` has of each level: ids, and how far they are behind.
        """
        raise NotImplementedError

    @property
    def threads(self) -> int:
        """CPU threads of a pass of few rows."""
        return torch.get_num_threads()

    @property
    def most_threads(self) -> int:
        """CPU threads of a pass of many rows."""
        return torch.get_num_threads()

    def spread(self, whether: bool) -> None:  # noqa: B027  (not all have more)
        """Has passes of few rows take the threads of those of many, where those can differ."""
