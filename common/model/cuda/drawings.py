"""How tokens are drawn, in one array that goes to the device in one copy.

It begins with `WORDS` of each row. Behind them stands what changes logits, of the rows that have
such: a few words (`PATH`), and the ids of the row's path, with room for those that are drawn while
rows go on. Masks of ids that occur stay where they are, and are read there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.model.roll import Adjusting, Drawing

POSITION, ADJUSTING = 1, 6
"""The words of a drawing that say where its token stands, and where in the array it stands what
changes its logits; 0 for nothing."""

WORDS = 7
"""Of a drawing: seed, position, temperature, top-k, top-p, min-p's logarithm, and the place of what
changes its logits. A temperature of 0 takes the likeliest token, one below 0 none."""

PATH = 5
"""The word of what changes logits that says how many ids the path has, which follow it. Before it:
penalty, the mask's address and length, where biased ids stand, and how many. Their biases follow
those, and rows of a text share both. Penalty and biases are float64."""


def packed(
    drawings: Sequence[Drawing], count: int = 0, rows: int = 0, *, levels: int = 0
) -> Tensor:
    """Drawings as the kernels read them, int64; who launches those keeps the masks until then.

    Args:
        drawings: N of them, or none.
        count: Without drawings, so many rows take the likeliest token.
        rows: What follows up to here is padding, and takes none.
        levels: How often rows may go on with a token that is drawn.
    """
    count = len(drawings) or count
    whole = np.zeros((max(count, rows), WORDS), dtype=np.int64)
    real = whole.view(np.float64)
    real[count:, 2] = -1.0
    behind: list[np.ndarray] = []
    if drawings:
        seeds, positions, top_ks, temperatures, top_ps, min_ps, changes = zip(
            *drawings, strict=True
        )
        whole[:count, 0] = np.array(seeds, dtype=np.uint64).view(np.int64)
        whole[:count, POSITION], whole[:count, 3] = positions, top_ks
        real[:count, 2], real[:count, 4] = temperatures, top_ps
        real[:count, 5] = [math.log(min_p) if min_p > 0 else -math.inf for min_p in min_ps]
        whole[:count, ADJUSTING], behind = _listed(changes, whole.size, levels)
    return torch.from_numpy(np.concatenate((whole.ravel(), *behind)))


def _listed(
    changes: Sequence[Adjusting | None], first: int, levels: int
) -> tuple[list[int], list[np.ndarray]]:
    """What changes logits: where each row's stands, and all of it, which begins at a place."""
    places: list[int] = []
    lists: list[np.ndarray] = []
    biased: dict[int, int] = {}  # where, by which
    for adjusting in changes:
        if adjusting is None:
            places.append(0)
            continue
        ids, biases, penalty, seen, path = adjusting
        if id(ids) not in biased:
            biased[id(ids)] = first
            lists += [ids.numpy(), biases.double().numpy().view(np.int64)]
            first += 2 * len(ids)
        mask = (0, 0) if seen is None else (seen.data_ptr(), len(seen))
        factor = int(np.float64(penalty).view(np.int64))
        how = (factor, *mask, biased[id(ids)], len(ids), len(path), *path, *[0] * levels)
        places.append(first)
        lists.append(np.array(how, dtype=np.int64))
        first += len(how)
    return places, lists
