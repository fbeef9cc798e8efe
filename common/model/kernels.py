"""Which kernels of ours run a decoder of Llama's shape: by device, type and quantisation.

What comes out computes every row of a batch independently of the others, and has a name that is
part of the numerics fingerprint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from common.accelerator import accelerator_name
from common.model.attention import AttentionContext
from common.model.cuda import keys
from common.model.cuda.device import lacks
from common.model.fused import FusedModel
from common.model.int4 import Int4Product
from common.model.linear import packed_products
from common.model.llama import Llama
from common.model.native import NativeModel, can_run, instructions
from common.model.output import Computed
from common.model.quantized import IntegerProduct, Quantize, integer_products
from common.model.whole_pass import WholePass

Kernels = Literal["auto", "torch"]
"""Whether passes may run through ours, or through torch's alone."""

_NATIVE = "native3"
_FUSED = "fused2"
_CUDA = "cuda1"
"""Names of layers; the number rises with every change of their bits."""

_COMPILED: dict[torch.dtype, tuple[Quantize, ...]] = {
    torch.bfloat16: ("none", "int8"),
    torch.float32: ("none",),
}
"""What the compiled decoder reads on a CPU: weights of these types, rounded to these."""

Forward = Callable[[Tensor, Tensor, Tensor], Computed]
"""Maps ids `[N]`, positions `[N]` and wanted rows `[M]` to logits `[M, V]`, the states the output
layer read, `[M, hidden]`, and the features of all rows that its context's taps say."""

Run = tuple[Forward | WholePass, str]
"""A model as the engine calls it, and the name of its kernels."""

_log = logging.getLogger(__name__)


def prepare(
    model: Llama,
    context: AttentionContext,
    *,
    quantize: Quantize = "none",
    kernels: Kernels = "auto",
    most_threads: int = 0,
) -> Run | None:
    """Has kernels of ours run a model.

    Args:
        model: The model; its layers are taken.
        context: Its cache and batch.
        quantize: What its weights are rounded to.
        kernels: Whose kernels are taken.
        most_threads: CPU threads of a pass of many rows, and of every pass where that is chosen.

    Returns:
        The model as the engine calls it, and the name of its kernels; None, and the model is as it
        was, where none of ours can run it.

    Raises:
        ModelError: It cannot be quantised.
    """
    dtype, ours = model.facts.dtype, kernels == "auto"
    device = model.embeddings.device
    if device.type == "cuda":
        known = ours and _cuda_runs(model, device, quantize)
        return _on_cuda(model, context, quantize) if known else None
    if ours and quantize in _COMPILED.get(dtype, ()) and can_run(model):
        return _native(model, context, quantize, most_threads)
    if ours and dtype not in _COMPILED:
        fast = " and ".join(str(each).removeprefix("torch.") for each in _COMPILED)
        left_out(device, f"{str(dtype).removeprefix('torch.')} is slow here, {fast} are not")
    if special := _for_compiled(model):
        if ours and dtype in _COMPILED:
            which = "compiled code, which rounds bfloat16 alone, to int8"
            left_out(device, f"{special} are for {which}")
        return None
    return _fused(model, context, quantize)


def _native(
    model: Llama, context: AttentionContext, quantize: Quantize, most_threads: int
) -> tuple[WholePass, str]:
    """A model of the compiled decoder, and its name."""
    rounded = quantize == "int8"
    native = NativeModel(model, context, quantize=rounded, most_threads=most_threads)
    used = instructions(model.facts.dtype)
    return native, f"{_NATIVE}-{used}{'-int8' if rounded else ''}"


def _for_compiled(model: Llama) -> str:
    """What a model has that only compiled code knows on a CPU; nothing where that is nothing."""
    if model.has_experts:
        return "experts"
    if model.latents is not None:
        return "latents of attention"
    if model.norms_values:
        return "norms of values, and what such models have besides,"
    return "scores and logits with caps" if model.softcap or model.head_softcap else ""


def _fused(
    model: Llama, context: AttentionContext, quantize: Quantize
) -> tuple[Forward, str] | None:
    """A model in few calls of torch, and its name; None without its products."""
    if quantize == "int8":
        if not integer_products():
            return None
        return FusedModel(model, context, IntegerProduct, IntegerProduct), f"{_FUSED}-int8"
    packed = packed_products(model.facts.dtype)
    if packed is None:
        return None
    how, product = packed
    name = f"{_FUSED}-{how}"
    if quantize == "int4":
        return FusedModel(model, context, Int4Product, product), f"{name}-int4"
    return FusedModel(model, context, product, product), name


def left_out(device: torch.device, reason: str) -> None:
    """Logs why a model is not run by kernels of ours."""
    facts = {"device": accelerator_name(device), "reason": reason}
    _log.warning("kernels are left out: passes go through torch", extra=facts)


def _cuda_runs(model: Llama, device: torch.device, quantize: Quantize) -> bool:
    """Whether the CUDA kernels know a model's layers and work on a device; logs why not."""
    problem = _cuda_lacks(model, device, quantize)
    if problem:
        left_out(device, problem)
    return not problem


def _cuda_lacks(model: Llama, device: torch.device, quantize: Quantize) -> str:
    """Why the CUDA kernels cannot be used; nothing where they can."""
    heads, kv_heads = model.heads, min(shape.kv_heads for shape in model.shapes)
    if model.has_experts and quantize == "int4":
        return "experts are rounded to int8 alone"
    if heads > kv_heads * keys.TILE:
        return f"{heads} heads share {kv_heads} of keys: at most {keys.TILE} can share one"
    problem = lacks(device)
    if problem:
        return problem
    from common.model.cuda import probe

    with torch.cuda.device(device):
        shapes, dtype = probe.Shape.of(model), model.facts.dtype
        faults = (probe.fault(shape, dtype, device) for shape in shapes)
        return next(filter(None, faults), "")


def _on_cuda(model: Llama, context: AttentionContext, quantize: Quantize) -> tuple[WholePass, str]:
    """A model of the CUDA kernels, and their name."""
    import triton

    from common.model.cuda.model import CudaModel
    from common.model.cuda.products import PRODUCTS

    name = f"{_CUDA}-triton{triton.__version__}"  # its compiler decides bits, too
    if quantize != "none":
        name += f"-{quantize}"
    return CudaModel(model, context, PRODUCTS[quantize]), name
