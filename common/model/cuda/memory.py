"""How much of a GPU's memory the key/value cache takes where nobody says so, and how much what is
gathered from it may take for a while."""

from __future__ import annotations

import torch

_FOR_PASSES = 1 << 30
"""Bytes kept from the cache: for what passes compute, angles, graphs, Medusa heads and drafts."""

_GATHERED_SHARE = 1 / 32
"""Largest share of a GPU's memory that is gathered at once: what is made of it takes about as much
again, and a tenth is nobody's share."""


def cache_bytes(device: torch.device, share: float, least: int) -> int:
    """Bytes for the cache of a model that is loaded.

    Args:
        device: Where its cache is to be.
        share: Part of a GPU's memory that this process may fill, weights included, in (0, 1].
        least: On a CPU, and on a GPU that has less left.
    """
    if device.type != "cuda":
        return least
    torch.cuda.empty_cache()  # loading takes more than what is loaded
    free, total = torch.cuda.mem_get_info(device)
    return max(least, _left(free, total, torch.cuda.memory_reserved(device), share))


def _left(free: int, total: int, held: int, share: float) -> int:
    """Bytes that a process's share leaves for its cache; may be below 0.

    What others have counts only where it is more than was left to them: so processes do not take
    each other's shares, whichever is there first.

    Args:
        free: Bytes of the GPU that no process has.
        total: All of its bytes.
        held: Bytes this process has.
        share: See `cache_bytes`.
    """
    return min(free, int(share * total) - held) - _FOR_PASSES


def gathered_bytes(device: torch.device, least: int) -> int:
    """Bytes that may be gathered from the cache at once.

    On a GPU a quarter of what is free, but no more than keeps the shares of processes that come
    later: torch does not give back what it once had.

    Args:
        device: Where the cache is.
        least: What is allowed on a CPU, and at least on a GPU.
    """
    if device.type != "cuda":
        return least
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(least, min(free // 4, int(_GATHERED_SHARE * total)))
