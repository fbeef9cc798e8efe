"""What enters the layers of a `transformers` model, and its last state, kept of a pass by hooks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from common.errors import ModelError
from common.model.hf import attention


class Taps:
    """Hooks on the layers whose inputs are wanted, and on what has all of them; none where none is.

    Args:
        model: Whose layers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._taps: tuple[int, ...] = ()
        self._hooks: list[RemovableHandle] = []
        self._kept: list[Tensor] = []

    def begin(self, taps: tuple[int, ...]) -> None:
        """Has inputs of these layers kept of the pass that follows, and of no others; as many as
        there are is for the state behind them.

        Raises:
            ModelError: The model's layers are not found.
        """
        self._kept = []  # a pass may have failed
        if taps == self._taps:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = [self._hook(tap) for tap in taps]
        self._taps = taps

    def take(self, rows: int) -> Tensor | None:
        """What the pass of so many rows left, `[N, taps * hidden]`; None without taps.

        Raises:
            ModelError: Those layers read something else than rows.
        """
        if not self._taps:
            return None
        kept, self._kept = self._kept, []
        if [x.shape[:-1] for x in kept] != [(1, rows)] * len(self._taps):
            raise ModelError(f"{_name(self._model)} cannot be tapped: its layers read no rows")
        return torch.cat(kept, dim=-1)[0]

    def _hook(self, tap: int) -> RemovableHandle:
        if tap < len(self._layers):
            layer = self._layers[tap]
            return layer.register_forward_pre_hook(self._keep, with_kwargs=True)
        return attention.decoder(self._model).register_forward_hook(self._keep_states)

    def _keep_states(self, decoder: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        self._kept.append(output[0])

    def _keep(self, layer: nn.Module, inputs: tuple[Tensor, ...], named: Mapping[str, Any]) -> None:
        x = inputs[0] if inputs else named["hidden_states"]
        self._kept.append(x.clone())  # a layer may add to it in place

    @cached_property
    def _layers(self) -> nn.ModuleList:
        """The model's decoder layers: the list of which each has the attention of its number.

        To look for them takes milliseconds, and passes that are tapped may come and go.
        """
        count = len(attention.layers(self._model))
        for found in attention.decoder(self._model).modules():
            if isinstance(found, nn.ModuleList) and len(found) == count:
                inner = [[each.layer_idx for each in attention.layers(layer)] for layer in found]
                if inner == [[index] for index in range(count)]:
                    return found
        raise ModelError(f"{_name(self._model)} cannot be tapped: its layers are not found")


def _name(model: nn.Module) -> str:
    return type(model).__name__
