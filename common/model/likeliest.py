"""The likeliest tokens by logits of heads, and how likely each is."""

from __future__ import annotations

import torch
from torch import Tensor

from common.model.native import instructions, top


def likeliest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Finds them, in compiled code where there is some.

    Args:
        logits: Any floating-point type. # [..., V]
        k: How many; at most the vocabulary.

    Returns:
        Ids (int64) and their probabilities (float32), likeliest first; numbers also where a bias or
        a penalty made logits infinite. # [..., k] each
    """
    assert 0 < k <= logits.shape[-1]
    if logits.device.type == "cpu" and logits.dtype == torch.float32 and instructions():
        return top(logits.contiguous(), k)
    with torch.inference_mode():
        finite = logits.nan_to_num(torch.finfo(logits.dtype).min)
        values, ids = finite.softmax(-1, dtype=torch.float32).topk(k, dim=-1)
    return ids, values
