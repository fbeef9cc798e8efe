"""Measures what a target pass costs by the rows it runs, with the serving engine's own runner."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from common.model.kv_cache import KvLease
from common.model.loader import LoadedModel, load
from common.model.medusa.heads import MedusaHeads, head_dtype
from common.model.medusa.weights import HeadWeights, Tree
from common.model.runner import Runner
from common.model.segment import Segment, tree_positions
from common.model.tree import TokenTree

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Row counts that are measured."""

_CONTEXT_TOKENS = 192
"""Tokens before the tree, about the middle of a short generation."""

_KV_BYTES = 64 << 20
_TOKEN = 5


def measure(
    target: Path,
    weights: HeadWeights,
    trees: Callable[[int], Tree],
    *,
    device: str = "auto",
    rows: Sequence[int] = ROWS,
    passes: int = 30,
) -> dict[int, float]:
    """Times passes with trees of every size, in turns, heads included.

    Args:
        target: Directory of the model.
        weights: The heads, run once a pass.
        trees: Gives the tree of so many nodes.
        device: As `common.model.loader.load` takes it.
        rows: Row counts, the root among them.
        passes: Repetitions.

    Returns:
        Shortest time of a pass by its rows, ms: whatever else runs can only add to it.
    """
    loaded = load(str(target), device=device)
    assert loaded.output_weight is not None
    runner = Runner(loaded, kv_bytes=_KV_BYTES)
    dtype = head_dtype(loaded.dtype, loaded.device)
    heads = MedusaHeads(weights, lm_head=loaded.output_weight, dtype=dtype, device=loaded.device)
    before = min(_CONTEXT_TOKENS, runner.max_len // 2)
    lease = runner.pool.lease(before + 2 * max(rows))
    context = [_TOKEN] * before
    runner.forward([Segment(context, 0, lease.slots, wanted=[])])
    times: dict[int, list[float]] = {count: [] for count in rows}
    for turn in range(passes + 1):
        for count in rows:
            segment = _segment(trees(count - 1), lease, before)
            began = time.perf_counter()
            states = runner.forward([segment]).states
            heads.top(heads.logits(states[:1], [_TOKEN]), 1)[0].tolist()
            _settle(loaded)
            if turn:  # the first one warms kernels up
                times[count].append(1000 * (time.perf_counter() - began))
    lease.release()
    return {count: min(found) for count, found in times.items()}


def _segment(paths: Tree, lease: KvLease, start: int) -> Segment:
    tree = TokenTree(_TOKEN)
    for path in paths:
        tree.add_path(_TOKEN + rank for rank in path)
    assert start + tree_positions(tree) <= lease.capacity
    return Segment(tree.ids, start, lease.slots, wanted=range(len(tree)), tree=tree)


def _settle(loaded: LoadedModel) -> None:
    if loaded.device.type == "cuda":
        torch.cuda.synchronize(loaded.device)
