"""Attention of a batch laid out, and gates, through torch: what the kernels are held against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.cuda.keys import ROW_SECTIONS, Size, section
from common.model.llama import Curve, Gate


def attend(
    queries: Tensor,
    cache: Tensor,
    words: Tensor,
    size: Size,
    page: int,
    *,
    scale: float,
    window: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """What `Attention` computes, row by row.

    Args:
        queries: `[N, H, D]`.
        cache: Of the layer, `[slots, Hkv, 2 D]`.
        words: The batch, laid out; see `keys`.
        size: Of the batch.
        page: Positions in a block of the cache.
        scale: Factor on the scores.
        window: Keys a row sees, itself included; all where None.
        sinks: Of each query head a score beside its keys', of which nothing comes, `[H]`.
        softcap: What scaled scores are kept within, by their tanh; None for nothing.

    Returns:
        float32 `[N, H, D]`; zero for rows that are padding.
    """
    _, heads, head_size = queries.shape
    out = torch.zeros(queries.shape, device=queries.device)
    first = len(ROW_SECTIONS) * size.rows
    for row in words[first : first + size.tiles * size.tile_rows].tolist():
        if row >= 0:
            slots = row_slots(words, size, row, page)
            seen = cache[slots if window is None else slots[-window:]].float()  # [W, Hkv, 2 D]
            seen = seen.transpose(0, 1).repeat_interleave(heads // cache.shape[1], dim=0)
            key, value = seen.split(head_size, dim=2)  # [H, W, D]
            query = queries[row].float()[:, None]  # [H, 1, D]
            scores = (query @ key.transpose(1, 2)).mul(scale)[:, 0]  # [H, W]
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            if sinks is not None:
                scores = torch.cat((scores, sinks[:, None]), dim=1)
            weights = scores.softmax(1)[:, None, : value.shape[1]]
            out[row] = (weights @ value)[:, 0]
    return out


def gated(gate: Tensor, up: Tensor, by: Gate) -> Tensor:
    """What a gate leaves of the other half."""
    if by.curve is Curve.CLAMPED:
        gate, up = gate.clamp(max=by.limit), up.clamp(-by.limit, by.limit) + 1
        return gate * torch.sigmoid(by.steepness * gate) * up
    curved = F.gelu(gate, approximate="tanh") if by.curve is Curve.GELU else F.silu(gate)
    return curved * up


def row_slots(words: Tensor, size: Size, row: int, page: int) -> Tensor:
    """Slots of the keys a row sees, by absolute position."""
    position, own, pages, path = (
        int(section(words, size, name)[row]) for name in ("positions", "own", "pages", "path")
    )
    at = torch.arange(min(own, position + 1), device=words.device)
    paged = words[pages + at // page] * page + at % page
    return torch.cat((paged, words[path : path + position + 1 - len(paged)]))
