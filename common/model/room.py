"""Memory that is not there, and memory that nobody needs any more."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from common.errors import ModelError, first_line

SMALLER_CACHE = "engine.kv_bytes, or on a GPU gpu_memory_share, must be smaller"
"""A remedy where the cache takes what is lacking."""

OTHER_WEIGHTS = "a larger device, another dtype or quantize helps"
"""A remedy where weights do."""

_TORCH_ON_CPU = "DefaultCPUAllocator: can't allocate memory"
"""What torch says on a CPU, in an error of no type of its own."""


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there is no memory left."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or _TORCH_ON_CPU in str(error)


def give_back() -> None:
    """Has the C library give up what is free between blocks that are not: where matrices are
    rounded or packed, that comes to more than half of what is left, or to several times a model."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


@contextmanager
def room_for(what: str, remedy: str) -> Iterator[None]:
    """Refuses what memory does not hold.

    Args:
        what: What is made meanwhile.
        remedy: What has it take less, or gives it more.

    Raises:
        ModelError: There is no room for it; says both, and what was asked for last.
    """
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        raise ModelError(f"no room for {what}: {first_line(error)} ({remedy})") from error
