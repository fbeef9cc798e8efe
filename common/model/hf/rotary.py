"""Rotary embeddings from a table, so that a position's angles have one value in any batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from common.model.attention import AttentionContext


class RotaryTable(nn.Module):
    """Stands in for a model's rotary embedding module.

    Args:
        inner: The module; maps (x, position_ids[, layer_type]) to cosines and sines, or to one
            tensor that holds both as complex numbers.
        context: The model's cache.
        max_len: Positions the model was made for.
    """

    def __init__(self, inner: nn.Module, context: AttentionContext, max_len: int) -> None:
        super().__init__()
        self.inner = inner
        self._context, self._max_len = context, max_len
        self._tables: dict[tuple[Any, ...], Tensor | tuple[Tensor, ...]] = {}

    def forward(
        self, x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, ...]:
        """What `inner` yields for positions: each tensor `[1, N, D]`.

        Args:
            x: Says the type and the device.
            position_ids: `[1, N]`, or `[3, 1, N]` for places in pictures: in a text they agree.
            args: Of `inner`.
            kwargs: The same.
        """
        positions = min(self._max_len, self._context.positions)
        key = (positions, *args, *sorted(kwargs.items()))
        if key not in self._tables:
            everything = torch.arange(positions, device=position_ids.device)
            everything = everything.expand(*position_ids.shape[:-1], positions)
            found = self.inner(x, everything, *args, **kwargs)
            self._tables[key] = (
                found[0] if isinstance(found, Tensor) else tuple(part[0] for part in found)
            )
        table = self._tables[key]
        position_ids = position_ids.view(-1, 1, position_ids.shape[-1])[0]
        if isinstance(table, Tensor):
            return table[position_ids]
        return tuple(part[position_ids] for part in table)


def replace_rotary(model: nn.Module, context: AttentionContext, max_len: int) -> None:
    """Puts a table in place of each rotary embedding of `model`."""
    for parent in list(model.modules()):
        inner = getattr(parent, "rotary_emb", None)
        if isinstance(inner, nn.Module) and hasattr(parent, "layers"):
            parent.rotary_emb = RotaryTable(inner, context, max_len)
