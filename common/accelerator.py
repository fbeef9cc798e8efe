"""What a device is called, the name operators know it by, and whether it computes at all."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from common.errors import first_line

_CPUINFO = Path("/proc/cpuinfo")


def accelerator_name(device: torch.device) -> str:
    """Returns the name of a GPU, or that of the processor.

    Args:
        device: Where a model runs.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return _processor() or platform.processor() or platform.machine()


def fault(name: str) -> str:
    """Why a GPU computes nothing; empty where it does.

    One may be counted and yet compute nothing: its driver is too old for torch, or torch has no
    kernels for it.

    Args:
        name: What torch calls it, such as cuda:0.
    """
    try:
        torch.ones(1, device=name).item()
    except Exception as error:  # its kind hangs on what is wrong
        return first_line(error)
    return ""


def check(device: torch.device) -> None:
    """Makes sure that a device computes, after an error that may be its own.

    Args:
        device: Where a model runs.

    Raises:
        RuntimeError: A GPU has failed such that nothing is computed there in this process any more,
            as after an illegal address.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _processor() -> str:
    """The model name that Linux tells of the first core; empty where it tells none."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")
