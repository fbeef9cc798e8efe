"""Linear layers with int4 weights, multiplied by torch's own kernels: a quarter of bfloat16.

Weights are rounded in groups along the inputs: each has a scale and a zero of its own, in bfloat16,
and sixteen steps. The kernels widen them as they read; inputs and outputs are bfloat16 (those of
float32 are there on a CPU, and take ten times as long as whole weights and more).
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.errors import ModelError

_STEPS = 15
_MIDDLE = 8
"""Of the sixteen steps; a weight is (step - middle) * scale + zero."""

_GROUPS = (128, 64, 32)
"""Inputs that may share a scale; the first that divides a layer's is taken."""

_OUTPUTS = 16
"""Outputs of a layer are a multiple of this."""

_LEAST_CAPABILITY = (8, 0)
"""Of a GPU that torch's kernels run on."""

_CUDA_INPUTS = 16
"""Of a tile of the packed matrix on CUDA; up to eight stand together."""


def group_inputs(outputs: int, inputs: int) -> int | None:
    """Inputs that share a scale in a layer of this shape; None where it cannot be rounded."""
    fitting = (group for group in _GROUPS if inputs % group == 0)
    return next(fitting, None) if outputs % _OUTPUTS == 0 else None


def round_groups(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rounds a matrix to int4.

    Args:
        weight: `[out, in]`.
        group: Inputs that share a scale.

    Returns:
        Steps, int32 `[out, in]`, and of each group scale and zero, bfloat16 `[out, in / group]`.
    """
    groups = weight.float().unflatten(1, (-1, group))  # [out, groups, group]
    low, high = groups.aminmax(dim=2)
    scale = ((high - low) / _STEPS).clamp_min(torch.finfo(torch.bfloat16).tiny).bfloat16()
    zero = (low + _MIDDLE * scale.float()).bfloat16()
    steps = (groups - zero.float()[..., None]) / scale.float()[..., None] + _MIDDLE
    return steps.round().clamp(0, _STEPS).to(torch.int32).flatten(1), scale, zero


class Int4Product:
    """A matrix of int4 weights.

    Args:
        weight: bfloat16, `[out, in]`; not kept.
        bias: `[out]` or None.

    Raises:
        ModelError: Its type or shape cannot be rounded, or there are no kernels where it is.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if weight.dtype != torch.bfloat16:
            kind = str(weight.dtype).removeprefix("torch.")
            raise ModelError(f"quantize: int4 takes dtype: bfloat16, not {kind}")
        _check_device(weight.device)
        outputs, inputs = weight.shape
        group = group_inputs(outputs, inputs)
        if group is None:
            raise ModelError(
                f"a layer of {inputs} inputs and {outputs} outputs cannot be rounded to int4: "
                f"inputs must be a multiple of {_GROUPS[-1]}, outputs of {_OUTPUTS}"
            )
        steps, scale, zero = round_groups(weight, group)
        self._group, self._bias = group, bias
        self._scales = torch.stack((scale.T, zero.T), dim=2).contiguous()  # [groups, out, 2]
        if weight.device.type == "cpu":
            self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(steps, 1)
            self._run = torch.ops.aten._weight_int4pack_mm_for_cpu.default
        else:
            pairs = (steps[:, ::2] << 4 | steps[:, 1::2]).to(torch.uint8)
            together = min(8, group // _CUDA_INPUTS)
            self._packed = torch.ops.aten._convert_weight_to_int4pack(pairs, together)
            self._run = torch.ops.aten._weight_int4pack_mm.default

    def __call__(self, x: Tensor) -> Tensor:
        """`W x + b` of `[N, in]`."""
        out: Tensor = self._run(x.contiguous(), self._packed, self._group, self._scales)
        return out if self._bias is None else out + self._bias

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`W x + b + other`."""
        return self(x) + other


def _check_device(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        raise ModelError("quantize: int4 takes a GPU of compute capability 8.0 or more")
