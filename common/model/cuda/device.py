"""What the kernels need of a device, and those that work on any model's logits there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

_DRAW = "draw1"
"""Name of the kernels; the number rises with every change of what they draw."""

_LEAST_CAPABILITY = (8, 0)

_log = logging.getLogger(__name__)


Draw = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Draws tokens by logits, drawings, where ids go and where it goes how far they are behind; see
`draw.draw`."""


def lacks(device: torch.device) -> str:
    """Why the kernels cannot run on a CUDA device; nothing where they can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "its compute capability is below 8.0"
    return ""


def drawn_by(device: torch.device) -> str:
    """The name of what draws tokens on a device; empty where it is torch, or the CPU."""
    if drawer(device) is None:
        return ""
    import triton

    return f"{_DRAW}-triton{triton.__version__}"


@cache
def drawer(device: torch.device) -> Draw | None:
    """What draws tokens on a device, tried before; None where torch has to. Logs why it has to."""
    if device.type != "cuda":
        return None
    problem = lacks(device)
    if not problem:
        from common.model.cuda import draw, probe

        with torch.cuda.device(device):
            problem = probe.fault_of_draws(device)
        if not problem:
            return draw.draw
    facts = {"device": torch.cuda.get_device_name(device), "reason": problem}
    _log.warning("tokens are drawn through torch: the CUDA kernel is left out", extra=facts)
    return None
