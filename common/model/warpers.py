"""What sampling makes of logits before noise: Hugging Face's warpers, in its order.

    temperature → top-k → top-p → min-p

Every floating-point operation is elementwise and every reduction a maximum or a sum of integers, so
that a row comes out alike whatever rows stand beside it. Probabilities are summed as 40-bit fixed
point for that reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.sampling_params import SamplingParams

# The likeliest token weighs 2^40: 2^22 of those still sum within an int64.
_WEIGHT_BITS = 40
# Dividing by less would overflow float32; far below it sampling is greedy anyway.
_LEAST_TEMPERATURE = 1e-30


def cuts(params: SamplingParams, vocab_size: int) -> bool:
    """Whether a warper cuts tokens off."""
    cut = 0 < params.top_k < vocab_size or params.top_p < 1 or params.min_p > 0
    return cut and not params.greedy


def survivors(
    adjusted: Tensor, params: Sequence[SamplingParams]
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Ids that survive, rising, and their warped logits: sorting for few tokens only.

    What the whole vocabulary needs is done on the device, the few candidates on the CPU.
    """
    scaled = _top_k(scale(adjusted, params), params)
    top = scaled.amax(-1, keepdim=True)
    weights = _weights(scaled, top)
    totals = weights.sum(-1).tolist()
    lines, ids = (scaled >= _floors(scaled, top, totals, params)).nonzero(as_tuple=True)
    columns = [column.cpu().numpy() for column in (ids, scaled[lines, ids], weights[lines, ids])]
    ends = np.searchsorted(lines.cpu().numpy(), np.arange(1, len(params) + 1)).tolist()

    found = []
    for one, total, start, end in zip(params, totals, [0, *ends], ends, strict=False):
        tokens, values, mass = (column[start:end] for column in columns)
        kept = _nucleus(values, mass, total, one)
        found.append((tokens[kept], values[kept]))
    return found


def scale(adjusted: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Temperature; NaN and infinities become finite, so that a broken row harms no other."""
    temperatures = [max(each.temperature, _LEAST_TEMPERATURE) for each in params]
    # A tensor on the device: CUDA would multiply by a scalar's reciprocal.
    scaled = adjusted / _column(temperatures, adjusted)
    return scaled.nan_to_num_(nan=torch.finfo(scaled.dtype).min)


def _top_k(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Cuts what is below the k-th value; like Hugging Face, keeps all that equal it."""
    vocab_size = scaled.shape[1]
    ks = [min(each.top_k or vocab_size, vocab_size) for each in params]
    most = max((k for k in ks if k < vocab_size), default=0)
    if not most:
        return scaled
    last = torch.tensor([[min(k, most) - 1] for k in ks], device=scaled.device)
    free = torch.tensor([[k == vocab_size] for k in ks], device=scaled.device)
    kth = scaled.topk(most).values.gather(1, last).masked_fill_(free, -math.inf)
    return scaled.where(scaled >= kth, -math.inf)


def _floors(
    scaled: Tensor, top: Tensor, totals: list[int], params: Sequence[SamplingParams]
) -> Tensor:
    """Logits under which no token of a row survives. # [G, 1]

    For top-p: tokens under (1 - top_p) / 2V of the probability hold less than 1 - top_p
    together, so those before them hold top_p and they are cut. (1 - top_p) / V would do; the
    half keeps rounding out of it. Min-p's floor is applied as it stands.
    """
    lowest = torch.finfo(scaled.dtype).min  # above what top-k has cut
    unit = 2.0**_WEIGHT_BITS * 2 * scaled.shape[1]
    floors = [
        max(
            lowest,
            _min_p_floor(high, each),
            high + _log((1 - each.top_p) * total / unit),
        )
        for high, total, each in zip(top[:, 0].tolist(), totals, params, strict=True)
    ]
    return _column(floors, scaled)


def _nucleus(
    logits: NDArray[np.float32], weights: NDArray[np.int64], total: int, params: SamplingParams
) -> NDArray[np.int64]:
    """Top-p: keeps the tokens before which less than top_p of the total weight stands.

    Args:
        logits: The row, or all of it from some value upwards, by rising id. # [M]
        weights: Of the same tokens. # [M]
        total: Weight of the whole row.
        params: For top_p.

    Returns:
        Indices of the survivors, rising; of equal logits the lowest ids survive first.
    """
    if params.top_p >= 1:
        return np.arange(len(logits))
    order = np.argsort(-logits, kind="stable")
    upto = weights[order].cumsum()
    count = 1 + np.searchsorted(upto, math.ceil(params.top_p * total))
    kept: NDArray[np.int64] = np.sort(order[:count])
    return kept


def _weights(scaled: Tensor, top: Tensor) -> Tensor:
    """Probabilities relative to the likeliest token's, fixed point. # int64 [G, M]"""
    return (scaled - top).exp_().mul_(2.0**_WEIGHT_BITS).to(torch.int64)


def _min_p_floor(top: float, params: SamplingParams) -> float:
    return top + _log(params.min_p)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _column(values: list[float], like: Tensor) -> Tensor:
    return like.new_tensor(values)[:, None]
