"""Rotary embeddings from a table, so that a position's angles have one value in any batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RotaryTable(nn.Module):
    """Stands in for a model's rotary embedding module.

    Args:
        inner: The module; maps (x, position_ids[, layer_type]) to cosines and sines.
        positions: Positions to hold.
    """

    def __init__(self, inner: nn.Module, positions: int) -> None:
        super().__init__()
        self.inner = inner
        self._positions = positions
        self._tables: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def forward(
        self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines for positions `[1, N]`, each `[1, N, D]`."""
        key = (*args, *sorted(kwargs.items()))
        if key not in self._tables:
            everything = torch.arange(self._positions, device=position_ids.device)[None]
            cos, sin = self.inner(x, everything, *args, **kwargs)
            self._tables[key] = cos[0], sin[0]
        cos, sin = self._tables[key]
        return cos[position_ids], sin[position_ids]


def replace_rotary(model: nn.Module, positions: int) -> None:
    """Puts a table in place of each rotary embedding of `model` that yields (cos, sin)."""
    for parent in list(model.modules()):
        inner = getattr(parent, "rotary_emb", None)
        if isinstance(inner, nn.Module) and hasattr(parent, "layers"):
            parent.rotary_emb = RotaryTable(inner, positions)
