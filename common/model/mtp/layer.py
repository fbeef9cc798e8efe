"""A layer that predicts the token after the next (DeepSeek-V3, 2024, section 2.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from common.model.kv_cache import LayerShape

Attended = Callable[[Tensor, Tensor], Tensor]
"""What rows see: of queries, scaled, and their own keys beside values, which may be in the cache
already; float32 `[R, heads, D]` and `[R, kv heads, D + V]`, to `[R, heads * V]`."""


class MtpLayer(ABC):
    """One of a model of hidden size t and vocabulary V, which gives it embeddings and output layer.

    Attributes:
        taps: Of the model, see `Runner`: behind its last layer.
        shape: Of its keys and values.
        window: Of them that a row sees, its own included; None where it sees all.
    """

    taps: tuple[int, ...]
    shape: LayerShape
    window: int | None

    @abstractmethod
    def keys(self, tokens: Tensor, states: Tensor, positions: Tensor) -> Tensor:
        """Keys beside values of rows.

        Args:
            tokens: The one after each row's, int64 `[N]`.
            states: What the model, or this layer, leaves of each row. # [N, t]
            positions: Of those tokens, int64 `[N]`.

        Returns:
            `[N, kv heads, D + V]`.
        """

    @abstractmethod
    def through(
        self, tokens: Tensor, states: Tensor, positions: Tensor, attended: Attended
    ) -> tuple[Tensor, Tensor]:
        """What it leaves of rows, and logits of the tokens after those.

        Args:
            tokens: As for `keys`.
            states: The same.
            positions: The same.
            attended: What they see.

        Returns:
            `[N, t]`, and float32 `[N, V]`.
        """
