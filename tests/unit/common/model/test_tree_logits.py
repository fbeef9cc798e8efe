"""Every architecture: a tree's rows have the bits of each of its paths decoded by itself."""

from __future__ import annotations

import random

import pytest
import torch

from common.model.kv_cache import KvLease
from common.model.runner import Runner
from common.model.segment import PathRows, Segment, tree_positions
from common.model.tree import TokenTree
from tests import tiny_models
from tests.inprocess import runner
from tests.tiny_models import ARCHITECTURES, VOCAB

PREFIX = 45
NODES = 14


@pytest.fixture(scope="module", params=ARCHITECTURES)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return runner(tiny_models.save(request.param, tmp_path_factory.mktemp("model")), "bfloat16")


def _lease(target: Runner, positions: int) -> KvLease:
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(positions)
    return lease


def _alone(target: Runner, prefix: list[int], paths: list[list[int]]) -> list[torch.Tensor]:
    """Logits after each path behind a prefix, computed one token at a time."""
    lease = _lease(target, len(prefix) + max(map(len, paths)))
    for at, token in enumerate(prefix):
        target.forward([Segment([token], at, lease.slots, wanted=[0])])
    rows = []
    for path in paths:  # each overwrites the one before
        for at, token in enumerate(path, len(prefix)):
            output = target.forward([Segment([token], at, lease.slots, wanted=[0])])
        rows.append(output.logits[0].clone())
    lease.release()
    return rows


def test_tree_rows_equal_sequential_decoding(target: Runner) -> None:
    draw = random.Random(5)
    prefix = [draw.randrange(3, VOCAB) for _ in range(PREFIX)]
    tree = TokenTree(prefix[-1])
    while len(tree) <= NODES:
        tree.add(draw.randrange(len(tree)), draw.randrange(3, VOCAB))
    start = PREFIX - 1
    lease = _lease(target, start + tree_positions(tree))
    target.forward([Segment(prefix[:-1], 0, lease.slots, wanted=[])])
    rows = target.forward(
        [Segment(tree.ids, start, lease.slots, tree=tree, wanted=range(len(tree)))]
    ).logits
    lease.release()
    leaves = [node for node in range(len(tree)) if not tree.children(node)]
    paths = [[tree.ids[node] for node in tree.path(leaf)] for leaf in leaves]
    for leaf, expected in zip(leaves, _alone(target, prefix, paths), strict=True):
        assert torch.equal(rows[leaf], expected)


def test_rows_behind_paths_of_their_own_equal_sequential_decoding(target: Runner) -> None:
    """Two paths of two tokens behind one prefix, each token in a slot of its own."""
    prefix, paths = list(range(3, 3 + PREFIX)), [[90, 91], [92, 93]]
    lease, scratch = _lease(target, PREFIX), _lease(target, 4)
    target.forward([Segment(prefix, 0, lease.slots, wanted=[])])
    slots = [[0, 1], [2, 3]]
    own = [[int(scratch.slots[index]) for index in pair] for pair in slots]
    for depth in range(2):
        ids = [path[depth] for path in paths]
        places = [pair[: depth + 1] for pair in own]
        rows = target.forward([PathRows(ids, PREFIX, lease.slots, places, wanted=range(2))]).logits
    lease.release()
    scratch.release()
    for row, expected in zip(rows, _alone(target, prefix, paths), strict=True):
        assert torch.equal(row, expected)
