"""What the kernels need of a device, and those that work on any model's logits there."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from common.model.roll import Drawing

_DRAW = "draw1"
"""Name of the kernels; the number rises with every change of what they draw."""

_LEAST_CAPABILITY = (8, 0)

POSITION = 1
"""The word of a drawing that says where its token stands."""

WORDS = 6
"""Of a drawing: seed, position, temperature, top-k, top-p, and min-p's logarithm. A temperature of
0 takes the likeliest token, one below 0 none."""

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


def packed(drawings: Sequence[Drawing], count: int = 0, rows: int = 0) -> Tensor:
    """Drawings as the kernels read them, int64 `[max(N, rows), WORDS]`.

    Args:
        drawings: N of them, or none.
        count: Without drawings, so many rows take the likeliest token.
        rows: What follows up to here is padding, and takes none.
    """
    count = len(drawings) or count
    whole = np.zeros((max(count, rows), WORDS), dtype=np.int64)
    real = whole.view(np.float64)
    real[count:, 2] = -1.0
    if drawings:
        seeds, positions, top_ks, temperatures, top_ps, min_ps, _ = zip(*drawings, strict=True)
        whole[:count, 0] = np.array(seeds, dtype=np.uint64).view(np.int64)
        whole[:count, POSITION], whole[:count, 3] = positions, top_ks
        real[:count, 2], real[:count, 4] = temperatures, top_ps
        real[:count, 5] = [math.log(min_p) if min_p > 0 else -math.inf for min_p in min_ps]
    return torch.from_numpy(whole)
