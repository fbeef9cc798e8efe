"""A few values of a model's output matrix: by them heads for another of the same size are told."""

from __future__ import annotations

import torch
from torch import Tensor

_COUNT = 32

# bfloat16 and float16 round differently; another model's values are off by far more.
_RELATIVE, _ABSOLUTE = 2e-2, 1e-3


def of(lm_head: Tensor) -> list[float]:
    """Values at places spread over the matrix. # [V, d]"""
    flat = lm_head.detach().flatten()
    places = [flat.numel() * i // _COUNT for i in range(_COUNT)]
    return [round(value, 6) for value in flat[places].float().tolist()]


def match(stored: object, lm_head: Tensor) -> bool:
    """Whether what a file holds, which may be anything, are the values of this matrix. # [V, d]"""
    try:
        there = torch.tensor(stored, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False
    here = torch.tensor(of(lm_head))
    return there.shape == here.shape and torch.allclose(there, here, _RELATIVE, _ABSOLUTE)
