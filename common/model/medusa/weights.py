"""Weights of Medusa heads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Tree = tuple[tuple[int, ...], ...]

FACTS_FILE = "medusa.json"
"""By which our own layout is told."""


@dataclass(frozen=True, kw_only=True)
class HeadWeights:
    """Weights of K heads of L blocks each, over hidden size d and vocabulary V."""

    block: Tensor
    """W of every block, `[K, L, d, d]`."""
    bias: Tensor
    """b of every block, `[K, L, d]`."""
    lm: Tensor | None
    """Output matrices, `[K, V, d]`; None where the base model's serves all heads."""
    token: Tensor | None = None
    """U of every first block, `[K, d, d]`; None where heads see the state alone."""
    tree: Tree | None = None
    """Sparse static tree chosen for these heads: paths of ranks."""

    @property
    def num_heads(self) -> int:
        """K."""
        return self.block.shape[0]

    @property
    def num_layers(self) -> int:
        """L."""
        return self.block.shape[1]
