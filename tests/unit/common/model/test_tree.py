"""Token trees: tries whose nodes, paths and covers agree."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.model.segment import tree_positions, tree_slots
from common.model.tree import TokenTree
from verifier.acceptance.coupled import walk

paths = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8)


def _tree(lists: list[list[int]]) -> TokenTree:
    tree = TokenTree(9)
    for path in lists:
        tree.add_path(path)
    return tree


@given(paths)
def test_a_tree_is_the_trie_of_its_paths(lists: list[list[int]]) -> None:
    tree = _tree(lists)
    prefixes = {tuple(path[:n]) for path in lists for n in range(len(path) + 1)} | {()}
    spelt = {tuple(tree.ids[n] for n in tree.path(node)) for node in range(len(tree))}
    assert spelt == prefixes
    assert len(tree) == len(prefixes)
    assert all(tree.parents[node] < node for node in range(1, len(tree)))
    assert all(tree.depths[node] == len(tree.path(node)) for node in range(len(tree)))


@given(paths, paths, paths)
def test_nodes_belong_to_who_added_them_first_and_probes_are_no_drafts(
    left: list[list[int]], probed: list[list[int]], right: list[list[int]]
) -> None:
    tree = TokenTree(9)
    tree.owner = "left"
    for path in left:
        tree.add_path(path)
    before, tree.owner = len(tree), "window"
    for path in probed:
        node = 0
        for token in path:
            node = tree.probe(node, token)
    assert tree.draft_tokens == before - 1
    assert tree.owners[1:] == ["left"] * (before - 1) + ["window"] * (len(tree) - before)
    tree.owner = "right"
    for path in right:
        tree.add_path(path)
    drafted = {tuple(path[:n]) for path in left + right for n in range(1, len(path) + 1)}
    assert tree.draft_tokens == len(drafted)


@given(paths)
def test_the_cover_holds_every_node_once_on_downward_runs(lists: list[list[int]]) -> None:
    tree = _tree(lists)
    runs = tree.path_cover()
    assert sorted(node for run in runs for node in run) == list(range(len(tree)))
    assert runs[0][0] == 0
    for run in runs:
        assert all(tree.parents[b] == a for a, b in itertools.pairwise(run))


@given(paths, st.integers(0, 50))
def test_slots_are_distinct_and_reserved(lists: list[list[int]], start: int) -> None:
    tree = _tree(lists)
    reserved = start + tree_positions(tree)
    slots = tree_slots(tree, start, np.arange(reserved))
    assert len(set(slots)) == len(tree)
    assert min(slots) == start
    assert max(slots) < reserved


@given(paths, st.data())
def test_the_walk_follows_the_samples(lists: list[list[int]], data: st.DataObject) -> None:
    tree = _tree(lists)
    samples = data.draw(st.lists(st.integers(0, 3), min_size=len(tree), max_size=len(tree)))
    accepted, bonus = walk(tree, samples)
    node = 0
    for step in accepted:
        assert tree.parents[step] == node
        assert tree.ids[step] == samples[node]
        node = step
    assert bonus == samples[node]
    assert tree.child(node, bonus) is None
