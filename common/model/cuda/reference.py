"""Attention of a batch laid out, through torch: what the kernels are held against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.cuda.keys import ROW_SECTIONS, Size, section, tile_rows


def attend(
    queries: Tensor,
    cache: Tensor,
    words: Tensor,
    size: Size,
    page: int,
    *,
    scale: float,
    window: int | None = None,
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

    Returns:
        float32 `[N, H, D]`; zero for rows that are padding.
    """
    _, heads, head_size = queries.shape
    out = torch.zeros(queries.shape, device=queries.device)
    first = len(ROW_SECTIONS) * size.rows
    for row in words[first : first + size.tiles * tile_rows(heads, cache.shape[1])].tolist():
        if row >= 0:
            slots = row_slots(words, size, row, page)
            seen = cache[slots if window is None else slots[-window:]].float()  # [W, Hkv, 2 D]
            key, value = seen.transpose(0, 1).split(head_size, dim=2)
            query = queries[row].float()[:, None]  # [H, 1, D]
            attended = F.scaled_dot_product_attention(
                query[None], key[None], value[None], scale=scale, enable_gqa=True
            )
            out[row] = attended[0, :, 0]
    return out


def row_slots(words: Tensor, size: Size, row: int, page: int) -> Tensor:
    """Slots of the keys a row sees, by absolute position."""
    position, own, pages, path = (
        int(section(words, size, name)[row]) for name in ("positions", "own", "pages", "path")
    )
    at = torch.arange(min(own, position + 1), device=words.device)
    paged = words[pages + at // page] * page + at % page
    return torch.cat((paged, words[path : path + position + 1 - len(paged)]))
