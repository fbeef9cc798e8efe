"""Whether rows of a batch influence each other: the promise that a pass has to keep, tried out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from common.model.segment import Segment

if TYPE_CHECKING:
    from common.model.runner import Runner

_CHECK_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 33)
"""Pieces the probe text is cut into; decoding and drafts of usual length meet warm kernels."""

_MANY_ROWS = (130, 256)
"""And on a device of its own: more than one product has, and as many as a full pass usually has."""


def rows_independent(runner: Runner) -> bool:
    """Whether logits and cache bits of a probe text come out alike however it is split."""
    generator = np.random.default_rng(0)
    own = runner.loaded.device.type != "cpu"
    sizes = (*_CHECK_ROWS, *_MANY_ROWS) if own else _CHECK_ROWS
    limit = min(runner.max_len - 1, sum(sizes))
    ids = generator.integers(0, runner.loaded.vocab_size, limit).tolist()
    single = _probe(runner, ids, itertools.repeat(1))
    split = _probe(runner, ids, iter(sizes))
    return all(torch.equal(a, b) for a, b in zip(single, split, strict=True))


def _probe(runner: Runner, ids: list[int], sizes: Iterator[int]) -> list[Tensor]:
    """Logits of all rows, and the cache they leave, with the text cut into these sizes."""
    lease = runner.pool.lease(len(ids))
    start, logits = 0, []
    while start < len(ids):
        rows = ids[start : start + next(sizes)]
        segment = Segment(rows, start, lease.slots, wanted=range(len(rows)))
        logits.append(runner.forward([segment]).logits.cpu())  # a device may have no room for all
        start += len(rows)
    slots = torch.from_numpy(lease.slots[: len(ids)]).to(runner.loaded.device)
    cache = [layer[slots] for layer in runner.model_caches]
    lease.release()
    return [torch.cat(logits), *cache]
