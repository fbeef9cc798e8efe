"""Linear layers and activations whose output row depends on its input row alone, bit for bit.

BLAS picks another kernel, and so another order of summation, when the number of rows
changes. Two replacements take that freedom away:

* `PackedLinear` (CPU): weights re-ordered once for oneDNN. Its kernels sum each row in one
  order at every row count, in float32 and bfloat16, and beat the plain call at few rows.
* `TiledLinear` (any device): rows padded to tiles of a fixed count, one product a tile.

`transformers` experts, which hold their weights as 3-D parameters, run through `tiled_experts`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE_ROWS = 16
"""Rows of one product where kernels are not invariant by themselves, on CPU."""

CUDA_TILE_ROWS = 64
"""The same on CUDA, where a pass is bound by memory and 64 rows cost what 1 does."""

_ELEMENTWISE_CHUNK = 16_384
"""Elements below which torch runs an elementwise kernel on one thread; a multiple of every SIMD
width, so that no element falls into a scalar tail, whose exp() rounds differently."""


def tiled_linear(x: Tensor, weight: Tensor, bias: Tensor | None, tile: int) -> Tensor:
    """`F.linear` in products of exactly `tile` rows.

    Args:
        x: Inputs, `[N, in]`.
        weight: `[out, in]`.
        bias: `[out]` or None.
        tile: Rows of one product.

    Returns:
        `[N, out]`.
    """
    rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -rows % tile))
    out = [F.linear(part, weight, bias) for part in torch.split(padded, tile)]
    return (out[0] if len(out) == 1 else torch.cat(out))[:rows]


class TiledLinear(nn.Module):
    """A linear layer in products of a fixed row count.

    Args:
        weight: `[out, in]`.
        bias: `[out]` or None.
        tile: Rows of one product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, tile: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.tile = tile

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        flat = tiled_linear(x.reshape(-1, x.shape[-1]), self.weight, self.bias, self.tile)
        return flat.view(*x.shape[:-1], -1)


class PackedLinear(nn.Module):
    """A CPU linear layer with its weight packed for oneDNN.

    Args:
        weight: `[out, in]`; not kept.
        bias: `[out]` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        # A batch size given here would select a special kernel for that many rows.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._run = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        result: Tensor = self._run(x, self.packed, self.bias, "none", [], "")
        return result


class SteadyActivation(nn.Module):
    """An elementwise activation on CPU, kept clear of scalar tails and uneven thread splits.

    Args:
        inner: The activation; maps any shape to the same shape.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Applies the activation to every element of `x`."""
        count = x.numel()
        if count % 64 == 0 and count < _ELEMENTWISE_CHUNK and x.is_contiguous():
            out: Tensor = self.inner(x)
            return out
        flat = F.pad(x.reshape(-1), (0, -count % 64))
        parts = [self.inner(part) for part in torch.split(flat, _ELEMENTWISE_CHUNK // 2)]
        return torch.cat(parts)[:count].view(x.shape)


def packing_works(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for `dtype` here that compute a row alike among any others."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and _wide_layers_are_steady()


@cache
def _wide_layers_are_steady() -> bool:
    """Whether a wide float32 layer gives a row the same bits alone; that of torch 2.11 does not."""
    generator = torch.Generator().manual_seed(0)
    layer = PackedLinear(torch.randn(4096, 320, generator=generator), None)
    rows = torch.randn(2, 320, generator=generator)
    return torch.equal(layer(rows)[:1], layer(rows[:1]))


def replace_linears(model: nn.Module, device: torch.device, dtype: torch.dtype) -> str:
    """Swaps every linear layer and, on CPU, every activation of `model` for a steady one.

    Layers that a tensor-parallel plan has split (their weights are DTensors) are left alone.

    Args:
        model: A loaded `transformers` model.
        device: Where it runs.
        dtype: Of its weights.

    Returns:
        The name of the kernels chosen, for the numerics fingerprint.
    """
    pack = device.type == "cpu" and packing_works(dtype)
    tile = TILE_ROWS if device.type == "cpu" else CUDA_TILE_ROWS
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weights = _linear_weights(child)
            if weights is not None:
                new = PackedLinear(*weights) if pack else TiledLinear(*weights, tile)
                setattr(parent, name, new)
            elif device.type == "cpu" and _is_activation(child):
                setattr(parent, name, SteadyActivation(child))
    return "packed" if pack else f"tiled{tile}"


def _linear_weights(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Weight `[out, in]` and bias of a layer that is a plain affine map, else None."""
    if type(module) is nn.Linear:
        if type(module.weight.data) is not Tensor:
            return None
        return module.weight.data, None if module.bias is None else module.bias.data
    if (
        type(module).__name__ == "Conv1D"
        and type(module).__module__ == "transformers.pytorch_utils"
    ):
        weight, bias = module.weight.data, module.bias.data
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        return weight.T.contiguous(), bias
    return None


def _is_activation(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__module__ in (
        "transformers.activations",
        "torch.nn.modules.activation",
    ) and not any(True for _ in module.parameters())


def tiled_experts(self: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """A mixture-of-experts layer in products of `TILE_ROWS` rows, for `ExpertsInterface`.

    Args:
        self: The experts module of `transformers`, holding `[E, ...]` weights.
        hidden: Inputs, `[N, H]`.
        top_k_index: Experts chosen for each row, `[N, k]`.
        top_k_weights: Their weights, `[N, k]`.

    Returns:
        `[N, H]`: for each row the weighted sum over its experts, in ascending order of expert.
    """
    out = torch.zeros_like(hidden)
    for expert in torch.unique(top_k_index).tolist():
        if expert >= self.num_experts:
            continue
        rows, rank = torch.where(top_k_index == expert)
        inner = _expert_linear(
            self, "gate_up_proj" if self.has_gate else "up_proj", expert, hidden[rows]
        )
        inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
        result = _expert_linear(self, "down_proj", expert, inner)
        if getattr(self, "has_post_expert_norm", False):
            result = self.post_expert_norm(result)
        out.index_add_(0, rows, (result * top_k_weights[rows, rank, None]).to(out.dtype))
    return out


def _expert_linear(experts: Any, name: str, expert: int, x: Tensor) -> Tensor:
    weight = getattr(experts, name)[expert]
    bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    tile = TILE_ROWS if x.device.type == "cpu" else CUDA_TILE_ROWS
    return tiled_linear(x, weight.T if experts.is_transposed else weight, bias, tile)
