"""Whether rows of a batch influence each other: the promise that a pass has to keep, tried out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from common.model.segment import Segment

if TYPE_CHECKING:
    from common.model.runner import Runner

_FEW_ROWS = (
    (1, 2, 3, 4, 5, 6, 7, 8, 13, 33),
    (8, 1, 13, 1, 33, 1, 7, 1, 6, 1, 5, 1, 4),
)
"""Pieces the probe text is cut into, one way and another: every size there is stands against
others. Decoding and drafts of usual length meet warm kernels."""

_MANY_ROWS = ((130, 256), (64, 1, 100, 1, 90, 1, 129))
"""And on a device of its own: more than one product has, and as many as a full pass usually has."""


def rows_independent(runner: Runner) -> bool:
    """Whether logits and cache bits of a probe text come out alike however it is split."""
    generator = np.random.default_rng(0)
    own = runner.loaded.device.type != "cpu"
    ways = [few + many if own else few for few, many in zip(_FEW_ROWS, _MANY_ROWS, strict=True)]
    limit = min(runner.max_len - 1, sum(ways[0]))
    ids = generator.integers(0, runner.loaded.vocab_size, limit).tolist()
    one, other = (_probe(runner, ids, sizes) for sizes in ways)
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _probe(runner: Runner, ids: list[int], sizes: Sequence[int]) -> list[Tensor]:
    """Logits of all rows, and the cache they leave, with the text cut into these sizes."""
    lease = runner.pool.lease(len(ids))
    start, logits = 0, []
    for size in sizes:
        rows = ids[start : start + size]
        if not rows:
            break
        segment = Segment(rows, start, lease.slots, wanted=range(len(rows)))
        logits.append(runner.forward([segment]).logits.cpu())  # a device may have no room for all
        start += len(rows)
    slots = torch.from_numpy(lease.slots[: len(ids)]).to(runner.loaded.device)
    cache = [layer[slots] for layer in runner.model_caches]
    lease.release()
    return [torch.cat(logits), *cache]
