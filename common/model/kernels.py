"""Which layers a model runs with: chosen by device, type and quantisation.

What comes out computes every row of a batch independently of the others, and has a name that is
part of the numerics fingerprint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from common.errors import ModelError
from common.model.attention import AttentionContext
from common.model.cuda import keys
from common.model.cuda.device import lacks
from common.model.fused import FusedModel, can_fuse, head_counts
from common.model.int4 import Int4Linear, Int4Product
from common.model.kv_cache import LayerShape
from common.model.linear import (
    MakeLinear,
    linear_maker,
    packed_products,
    replace_linears,
    tile_rows,
)
from common.model.native import NativeModel, can_run, instructions
from common.model.output import Output
from common.model.quantized import (
    IntegerLinear,
    IntegerProduct,
    WidenedLinear,
    integer_products,
)
from common.model.roll import Rolled, RollOptions
from common.model.rotary import replace_rotary
from common.model.segment import Segment

Quantize = Literal["none", "int8", "int4"]
"""What weights are rounded to when a model is loaded."""

Kernels = Literal["auto", "torch"]
"""Whether passes may run through ours, or through torch's alone."""

_NATIVE = "native2"
_FUSED = "fused2"
_CUDA = "cuda1"
"""Names of layers; the number rises with every change of their bits."""

_COMPILED: dict[torch.dtype, tuple[Quantize, ...]] = {
    torch.bfloat16: ("none", "int8"),
    torch.float32: ("none",),
}
"""What the compiled decoder reads on a CPU: weights of these types, rounded to these."""

Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps ids `[N]`, positions `[N]` and wanted rows `[M]` to logits `[M, V]` and the states the
output layer read, `[M, hidden]`."""


_log = logging.getLogger(__name__)


@runtime_checkable
class WholePass(Protocol):
    """A model that lays a batch out as it needs it, and computes a pass in one call."""

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """Of the cache, by layer."""

    def __call__(self, segments: Sequence[Segment]) -> Output:
        """Computes rows; their slots are reserved and distinct."""


@runtime_checkable
class Rolls(Protocol):
    """A model of which some make several passes in one call."""

    @property
    def rolls(self) -> bool:
        """Whether this one does."""

    def roll(self, segments: Sequence[Segment], slots: ArrayLike, options: RollOptions) -> Rolled:
        """See `Runner.roll`."""


@runtime_checkable
class Levels(Protocol):
    """A model that tells of each pass of a call while it runs the next."""

    def levels(
        self,
        segments: Sequence[Segment],
        slots: ArrayLike,
        options: RollOptions,
        enough: Callable[[], bool],
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """See `Runner.levels`; with what `Rolled` has of each level."""


def prepare(
    model: nn.Module,
    context: AttentionContext,
    *,
    device: torch.device,
    max_len: int,
    quantize: Quantize,
    kernels: Kernels = "auto",
    most_threads: int = 0,
) -> tuple[Forward | WholePass, str]:
    """Makes a loaded `transformers` model fit the engine.

    Args:
        model: The model; its layers are replaced.
        context: Its cache and batch.
        device: Where it runs.
        max_len: Positions to be ready for.
        quantize: What its weights are rounded to.
        kernels: Whose kernels are taken.
        most_threads: CPU threads of a pass of many rows, and of every pass where that is chosen.

    Returns:
        The model as the engine calls it, and the name of its kernels.

    Raises:
        ModelError: It cannot be quantised.
    """
    dtype = next(model.parameters()).dtype
    if quantize != "none":
        _check_quantizable(model, quantize, dtype)
    whole: tuple[Forward | WholePass, str] | None = None
    ours = kernels == "auto"
    if device.type == "cuda":
        if ours and _cuda_runs(model, device):
            whole = _on_cuda(model, context, max_len, quantize)
    elif ours and quantize in _COMPILED.get(dtype, ()) and can_run(model):
        whole = _native(model, context, max_len, quantize, most_threads)
    elif can_fuse(model):
        whole = _fused(model, context, max_len, dtype, quantize)
    if whole is not None:
        return whole
    exact, head = linear_maker(device, dtype)
    name, make = exact, head
    if quantize == "int4":
        name, make = f"{exact}-int4", Int4Linear
    elif quantize == "int8":
        name, make = _int8(device)
        head = make
    replace_rotary(model, max_len)
    replace_linears(model, device, make, head)
    return _Adapter(model), name


def _int8(device: torch.device) -> tuple[str, MakeLinear]:
    """Layers of int8 weights, and their name."""
    if device.type == "cpu" and integer_products():
        return "int8", IntegerLinear
    tile = tile_rows(device)
    return f"widened{tile}-int8", partial(WidenedLinear, tile=tile)


def _native(
    model: Any,
    context: AttentionContext,
    max_len: int,
    quantize: Quantize,
    most_threads: int,
) -> tuple[WholePass, str]:
    """A model of the compiled decoder, and its name."""
    rounded = quantize == "int8"
    native = NativeModel(model, context, max_len, quantize=rounded, most_threads=most_threads)
    used = instructions(model.lm_head.weight.dtype)
    return native, f"{_NATIVE}-{used}{'-int8' if rounded else ''}"


def _fused(
    model: Any,
    context: AttentionContext,
    max_len: int,
    dtype: torch.dtype,
    quantize: Quantize,
) -> tuple[Forward, str] | None:
    """A model of Llama's shape in few calls of torch, and its name; None without its products."""
    if quantize == "int8":
        if not integer_products():
            return None
        fused = FusedModel(model, context, max_len, IntegerProduct, IntegerProduct)
        return fused, f"{_FUSED}-int8"
    packed = packed_products(dtype)
    if packed is None:
        return None
    how, product = packed
    name = f"{_FUSED}-{how}"
    if quantize == "int4":
        return FusedModel(model, context, max_len, Int4Product, product), f"{name}-int4"
    return FusedModel(model, context, max_len, product, product), name


def _cuda_runs(model: Any, device: torch.device) -> bool:
    """Whether the CUDA kernels know a model's layers and work on a device; logs why not."""
    problem = _cuda_lacks(model, device)
    if problem:
        facts = {"device": torch.cuda.get_device_name(device), "reason": problem}
        _log.warning("CUDA kernels are left out: passes go through torch", extra=facts)
    return not problem


def _cuda_lacks(model: Any, device: torch.device) -> str:
    """Why the CUDA kernels cannot be used; nothing where they can."""
    if not can_fuse(model):
        return f"{type(model).__name__} is not of Llama's shape"
    attention = model.model.layers[0].self_attn
    (heads, kv_heads), size = head_counts(attention), attention.head_dim
    if heads > kv_heads * keys.TILE:
        return f"{heads} heads share {kv_heads} of keys: at most {keys.TILE} can share one"
    problem = lacks(device)
    if problem:
        return problem
    from common.model.cuda import probe

    weight = model.lm_head.weight
    with torch.cuda.device(device):
        return probe.fault(
            probe.Shape(heads, kv_heads, size, weight.shape[1]), weight.dtype, device
        )


def _on_cuda(
    model: Any, context: AttentionContext, max_len: int, quantize: Quantize
) -> tuple[WholePass, str]:
    """A model of the CUDA kernels, and their name."""
    import triton

    from common.model.cuda.model import CudaModel
    from common.model.cuda.products import PRODUCTS

    name = f"{_CUDA}-triton{triton.__version__}"  # its compiler decides bits, too
    if quantize != "none":
        name += f"-{quantize}"
    return CudaModel(model, context, max_len, PRODUCTS[quantize]), name


def _check_quantizable(model: nn.Module, quantize: Quantize, dtype: torch.dtype) -> None:
    """Refuses models whose weights would stay what they are, or that have no such products."""
    kind = type(model).__name__
    if quantize == "int4" and dtype != torch.bfloat16:
        raise ModelError(
            f"{kind}: quantize: int4 takes dtype: bfloat16, not {str(dtype).removeprefix('torch.')}"
        )
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
