"""Whether the kernels compute what torch does on the device at hand.

They are compiled where they run, by a compiler and for a device that nobody tried together, maybe.
A wrong or missing kernel shall cost speed, not a worker.
"""

from __future__ import annotations

import numpy as np
import torch

from common.model.batch import Segment
from common.model.cuda import reference
from common.model.cuda.attention import Attention
from common.model.cuda.keys import lay_out, tile_rows
from common.model.tree import TokenTree

_PAGE, _PAGES = 16, 96
_POSITION = 1_100
"""Where the tree stands: behind several stretches of keys, in the middle of a block."""


def fault(heads: int, kv_heads: int, size: int, dtype: torch.dtype, device: torch.device) -> str:
    """Attends with rows of a tree and of a chain.

    Args:
        heads: H.
        kv_heads: Hkv.
        size: D.
        dtype: Of queries and cache.
        device: Where to.

    Returns:
        What is wrong, or nothing.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (_PAGE * _PAGES, kv_heads, 2 * size)
    cache = torch.randn(shape, generator=generator).to(device, dtype)
    slots = np.random.default_rng(0).permutation(np.arange(1, _PAGES))[:, None] * _PAGE
    table = (slots + np.arange(_PAGE)).ravel()
    half = len(table) // 8
    tree = TokenTree.chain(0, (1, 2, 3))
    for path in ((4, 5), (1, 6, 7), (1, 2, 8)):
        tree.add_path(path)
    segments = [
        Segment(tree.ids, _POSITION, table[half:], wanted=(), tree=tree),
        Segment((1, 2), 90, table[:half], wanted=()),
    ]
    rows = tile_rows(heads, kv_heads)
    keys = lay_out(segments, page=_PAGE, tile_rows=rows, row_step=1)
    words = torch.from_numpy(keys.words).to(device)
    queries = torch.randn(keys.size.rows, heads, size, generator=generator).to(device, dtype)
    scale = size**-0.5
    expected = reference.attend(queries, cache, words, keys.size, _PAGE, scale=scale)
    try:
        attention = Attention(heads, kv_heads, size, scale, None)
        found = attention(queries.clone(), cache, words, keys.size, _PAGE).float()
    except Exception as error:  # a compiler that is missing, a device that is too small, …
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    worst = float((found - expected).abs().max())
    most = 64 * torch.finfo(dtype).eps
    return "" if worst <= most else f"attention is off by {worst:.3g}; at most {most:.3g} is right"
