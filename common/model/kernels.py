"""Which layers a model runs with: chosen by device, type and quantisation.

What comes out computes every row of a batch independently of the others, and has a name that is
part of the numerics fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from common.errors import ModelError
from common.model.attention import AttentionContext
from common.model.fused import FusedModel, can_fuse
from common.model.linear import MakeLinear, linear_maker, packing_works, replace_linears, tile_rows
from common.model.native import NativeModel, can_run, has_tiles
from common.model.quantized import (
    IntegerLinear,
    IntegerProduct,
    WidenedLinear,
    integer_products,
)
from common.model.rotary import replace_rotary

Quantize = Literal["none", "int8"]
"""What weights are rounded to when a model is loaded."""

_NATIVE = "native1"
_NATIVE_AMX = "native1-amx"
_FUSED = "fused2"
"""Names of layers; the number rises with every change of their bits."""

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps ids `[N]`, positions `[N]` and wanted rows `[M]` to logits `[M, V]` and the states the
output layer read, `[M, hidden]`."""


def prepare(
    model: nn.Module,
    context: AttentionContext,
    *,
    device: torch.device,
    max_len: int,
    quantize: Quantize,
    most_threads: int = 0,
) -> tuple[Forward | NativeModel, str]:
    """Makes a loaded `transformers` model fit the engine.

    Args:
        model: The model; its layers are replaced.
        context: Its cache and batch.
        device: Where it runs.
        max_len: Positions to be ready for.
        quantize: What its weights are rounded to.
        most_threads: CPU threads of a pass of many rows, where that can differ from others'.

    Returns:
        The model as the engine calls it, and the name of its kernels.

    Raises:
        ModelError: It cannot be quantised.
    """
    dtype = next(model.parameters()).dtype
    cpu = device.type == "cpu"
    make: MakeLinear
    native = partial(NativeModel, model, context, max_len, most_threads=most_threads)
    if quantize == "int8":
        _check_quantizable(model)
        if cpu and can_run(model):
            return native(quantize=True), f"{_NATIVE}-int8"
        if cpu and integer_products():
            if can_fuse(model):
                return FusedModel(model, context, max_len, IntegerProduct), f"{_FUSED}-int8"
            name, make = "int8", IntegerLinear
        else:
            tile = tile_rows(device)
            name, make = f"widened{tile}-int8", partial(WidenedLinear, tile=tile)
    elif cpu and can_run(model):
        return native(), _NATIVE_AMX if has_tiles() else _NATIVE
    elif cpu and packing_works(dtype) and can_fuse(model):
        return FusedModel(model, context, max_len), _FUSED
    else:
        name, make = linear_maker(device, dtype)
    replace_rotary(model, max_len)
    replace_linears(model, device, make)
    return _Adapter(model), name


def _check_quantizable(model: nn.Module) -> None:
    """Refuses models whose weights would stay what they are."""
    kind = type(model).__name__
    for module in model.modules():
        if hasattr(module, "is_transposed") and hasattr(module, "config"):
            raise ModelError(
                f"{kind} cannot be quantised: the weights of its experts are no linear layers; "
                "quantize: must be none"
            )
        if type(module) is nn.Linear and type(module.weight.data) is not Tensor:
            raise ModelError(
                f"{kind} cannot be quantised where a tensor-parallel plan has split it; "
                "quantize: must be none"
            )


class _Adapter:
    """Calls a `transformers` model the way the engine does."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        # Four dimensions tell transformers that the mask is made; it then looks no further.
        self._ready_mask = torch.zeros(1, 1, 1, 1)
        self._states = torch.empty(0)
        output_layer: Any = model.get_output_embeddings()  # type: ignore[operator]
        output_layer.register_forward_pre_hook(self._keep_states)

    def __call__(self, ids: Tensor, positions: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        out = self._model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=self._ready_mask.to(ids.device),
            use_cache=False,
            logits_to_keep=wanted,
        )
        return out.logits[0], self._states[0]

    def _keep_states(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        self._states = inputs[0]
