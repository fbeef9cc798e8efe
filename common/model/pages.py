"""Memory on large pages, for what passes read: weights from one end to the other, and the cache.

On pages of 4 KiB a pass over a model looks thousands of them up, and what fetches ahead stops at
the end of each.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

_CHUNK = 64 << 20
"""Bytes asked for at once; those that nothing is written to take no memory."""

_LINE = 64


class LargePages:
    """Gives out memory piece by piece; a piece lives as long as its tensor."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def copy(self, tensor: Tensor) -> Tensor:
        """A contiguous copy that begins with a cache line."""
        return self.zeros(tensor.shape, tensor.dtype).copy_(tensor)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeros that begin with a cache line."""
        size = math.prod(shape) * dtype.itemsize
        if len(self._left) < size:
            self._left = _chunk(max(size, _CHUNK))
        piece = self._left[:size].view(dtype).view(*shape)
        self._left = self._left[-(-size // _LINE) * _LINE :]
        return piece


def _chunk(size: int) -> Tensor:
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes cannot be had: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
