"""Which ids occur in a text, as repetition penalties ask for it: a mask over the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.model.transfer import on_device


def seen(ids: Sequence[int], vocab_size: int, device: torch.device) -> Tensor:
    """The mask of a text, `[V]`.

    Args:
        ids: All of it.
        vocab_size: V.
        device: Where to.
    """
    mask = torch.zeros(vocab_size, dtype=torch.bool, device=device)
    mark(mask, ids)
    return mask


def mark(mask: Tensor, ids: Sequence[int]) -> None:
    """Adds ids to a mask `[V]`, without waiting for a device."""
    if mask.device.type == "cpu":  # by torch a few ids take five times as long
        mask.numpy()[[*ids]] = True
    else:
        mask.index_fill_(0, on_device(ids, mask.device), True)  # one launch; `mask[...]` takes two
