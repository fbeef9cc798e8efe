"""Layers of a `transformers` model, replaced by such as compute every row by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import isfunction
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from common.model.linear import PARALLEL_ELEMENTS, MakeLinear, in_tiles, tile_rows, tiled_linear

_PRODUCTS = {F.linear, torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm}
"""What multiplies rows by a matrix."""

_CURVES = {torch.sigmoid, Tensor.sigmoid, F.softplus, F.silu, F.gelu, torch.tanh, Tensor.tanh}
"""What takes every element by itself, but on CPU not alike in a vector and in the rest of one."""

_TENSORS = ("input", "weight", "other", "mat2")
"""What these functions take first, by name; in this order."""

_CURVE_NAMES = {curve.__name__ for curve in _CURVES}


def steadily(curve: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An elementwise function on CPU, kept clear of scalar tails and uneven thread splits.

    Args:
        curve: Maps any shape to the same shape.
        x: Of any shape.
    """
    count = x.numel()
    if count % 64 == 0 and count < PARALLEL_ELEMENTS and x.is_contiguous():
        return curve(x)
    flat = F.pad(x.reshape(-1), (0, -count % 64))
    parts = [curve(part) for part in torch.split(flat, PARALLEL_ELEMENTS // 2)]
    return torch.cat(parts)[:count].view(x.shape)


class SteadyActivation(nn.Module):
    """An elementwise activation on CPU; see `steadily`.

    Args:
        inner: The activation; maps any shape to the same shape.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Applies the activation to every element of `x`."""
        return steadily(self.inner, x)


class SteadyTorch(TorchFunctionMode):
    """Has torch multiply rows in products of a fixed count, and take every element alike.

    Args:
        tile: Rows of one product.
    """

    def __init__(self, tile: int) -> None:
        super().__init__()
        self._tile = tile

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs one function of torch."""
        named = dict(kwargs or {})
        if func in _PRODUCTS or func in _CURVES:
            args = (*args, *(named.pop(name) for name in _TENSORS if name in named))
        if func in _CURVES and args[0].device.type == "cpu":
            x, *others = args
            return steadily(lambda part: func(part, *others, **named), x)
        if func in _PRODUCTS and args[1].dim() == 2:
            x, *others = args
            if x.dim() == 2 and len(x) == self._tile:  # of a layer that makes tiles itself
                return func(*args, **named)
            flat = x.reshape(-1, x.shape[-1])
            out = in_tiles(lambda part: func(part, *others, **named), flat, self._tile)
            return out.view(*x.shape[:-1], out.shape[-1])
        return func(*args, **named)


def replace_linears(
    model: nn.Module, device: torch.device, make: MakeLinear, head: MakeLinear
) -> bool:
    """Swaps every linear layer and, on CPU, every activation of `model` for a steady one.

    Others that compute (routers, gates, experts that no interface reaches) do so under
    `SteadyTorch`, which leaves products of several matrices to the runner's padding. Layers that a
    tensor-parallel plan has split (their weights are DTensors) are left alone. What comes of it is
    not to be copied: a copy would compute with this one's weights.

    Args:
        model: A loaded `transformers` model.
        device: Where it runs.
        make: Makes the layers.
        head: Makes the output layer.

    Returns:
        Whether there are such others.
    """
    others = False
    output_layer = model.get_output_embeddings()  # type: ignore[operator]
    for parent, name, child in children(model):
        weights = linear_weights(child)
        if weights is not None:
            setattr(parent, name, (head if child is output_layer else make)(*weights))
        elif device.type == "cpu" and _is_activation(child):
            setattr(parent, name, SteadyActivation(child))
        elif _multiplies(child) or (device.type == "cpu" and _bends(child)):
            child.forward = _steady(child.forward, tile_rows(device))
            others = True
    return others


def children(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """All modules below one, each with what has it and by which name; they may be replaced."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            yield parent, name, child


def _multiplies(module: nn.Module) -> bool:
    """Whether a module may multiply by a matrix of its own; experts of an interface do in tiles."""
    if isinstance(module, nn.Embedding) or is_experts(module):
        return False
    own = module.parameters(recurse=False)
    return any(weight.dim() > 1 and type(weight.data) is Tensor for weight in own)


def _bends(module: nn.Module) -> bool:
    """Whether a module's code names an elementwise function."""
    code = (each.__code__ for each in vars(type(module)).values() if isfunction(each))
    return any(not _CURVE_NAMES.isdisjoint(each.co_names) for each in code)


def _steady(forward: Callable[..., Any], tile: int) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **named: Any) -> Any:
        with SteadyTorch(tile):
            return forward(*args, **named)

    return run


def bring(module: nn.Module, device: torch.device, *, there: Iterable[Tensor] = ()) -> nn.Module:
    """Moves a module to a device; on the CPU, out of the pages of its file, which may change.

    Args:
        module: It.
        device: Where to.
        there: Those of its tensors that have been brought.
    """
    module.to(device)
    if device.type == "cpu":
        known = set(map(id, there))
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            if id(tensor) not in known:
                tensor.data = tensor.data.clone()
    return module


def is_experts(module: nn.Module) -> bool:
    """Whether a module's forward pass is looked up in `ExpertsInterface`."""
    return hasattr(module, "is_transposed") and hasattr(module, "config")


def linear_weights(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
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
    """A mixture-of-experts layer in products of `tile_rows` rows, for `ExpertsInterface`.

    Args:
        self: The experts module of `transformers`, holding `[E, ...]` weights.
        hidden: Inputs, `[N, H]`.
        top_k_index: Experts chosen for each row, `[N, k]`.
        top_k_weights: Their weights, `[N, k]`.

    Returns:
        `[N, H]`: for each row the weighted sum over its experts, in ascending order of expert.
    """
    out = torch.zeros_like(hidden)
    experts, order = top_k_index.flatten().sort(stable=True)
    every = torch.arange(self.num_experts, dtype=experts.dtype, device=experts.device)
    ends = torch.searchsorted(experts, every, right=True).tolist()  # all that waits for a device
    sorted_rows, weights = order // top_k_index.shape[1], top_k_weights.flatten()[order]
    first = "gate_up_proj" if self.has_gate else "up_proj"
    for expert, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        if start == end:
            continue
        rows = sorted_rows[start:end]
        inner = _expert_linear(self, first, expert, hidden[rows])
        inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
        result = _expert_linear(self, "down_proj", expert, inner)
        if getattr(self, "has_post_expert_norm", False):
            result = self.post_expert_norm(result)
        out.index_add_(0, rows, (result * weights[start:end, None]).to(out.dtype))
    return out


def _expert_linear(experts: Any, name: str, expert: int, x: Tensor) -> Tensor:
    weight = getattr(experts, name)[expert]
    bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    return tiled_linear(x, weight.T if experts.is_transposed else weight, bias, tile_rows(x.device))
