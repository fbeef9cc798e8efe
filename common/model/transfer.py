"""Numbers from the host to a device and back, without waiting where that can be."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU where a copy to the device, non-blocking, waits for nothing there."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def on_device(numbers: ArrayLike, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers of the host on a device, without waiting for it."""
    here = pinned(torch.as_tensor(np.asarray(numbers), dtype=dtype), device)
    return here.to(device, non_blocking=True)


def fetched(*tensors: Tensor) -> list[Tensor]:
    """Tensors of one device on the CPU, for which the host waits once."""
    *others, last = tensors
    here = [each.to("cpu", non_blocking=True) for each in others]
    return [*here, last.cpu()]  # behind which, on the device's stream, all others are there
