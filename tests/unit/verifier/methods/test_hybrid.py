"""Several methods share one tree, and each is kept only while it pays."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from common.model.tree import TokenTree
from tests.unit.verifier.methods.scripted_target import sequence
from verifier.cost import StepCost
from verifier.methods.base import Outcome
from verifier.methods.hybrid import HybridProposer
from verifier.sequence import Sequence

COST = StepCost(((1, 0.003), (8, 0.005), (64, 0.021)))


@dataclass
class Member:
    """Proposes one path, and is ready when it is told to be."""

    path: list[int]
    is_ready: bool = True
    budgets: list[int] = field(default_factory=list)
    closed: int = 0

    def open(self, sequence: Sequence) -> None: ...

    def ready(self, sequence: Sequence, now: float) -> bool:
        return self.is_ready

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        self.budgets.append(budget)
        tree.add_path(self.path[:budget])

    def observe(self, sequence: Sequence, outcome: Outcome) -> None: ...

    def close(self, sequence: Sequence) -> None:
        self.closed += 1

    def flush(self) -> float | None:
        return None


def _round(hybrid: HybridProposer, one: Sequence, right: list[int], now: float = 0.0) -> TokenTree:
    """One round in which the target goes along `right`."""
    assert hybrid.ready(one, now)
    tree = TokenTree(one.ids[-1])
    hybrid.propose(one, tree, 16)
    accepted, node = [], 0
    for token in right:
        child = tree.child(node, token)
        if child is None:
            break
        accepted.append(child)
        node = child
    ids = [*(tree.ids[node] for node in accepted), 9]
    one.commit(ids)
    state = torch.zeros(1)
    hybrid.observe(one, Outcome(tree=tree, choices=(), accepted=accepted, ids=ids, state=state))
    return tree


def _hybrid(a: Member, b: Member, **options: object) -> tuple[HybridProposer, Sequence]:
    hybrid, one = HybridProposer({"a": a, "b": b}, COST), sequence([5], 100_000, **options)
    hybrid.open(one)
    return hybrid, one


def test_a_node_that_both_want_is_checked_once() -> None:
    hybrid, one = _hybrid(Member([1, 2, 3]), Member([1, 2, 4]))
    tree = _round(hybrid, one, right=[1, 2, 3])
    assert len(tree) == 1 + 4
    assert tree.owners[1:4] == ["a", "a", "a"]
    assert tree.owners[4] == "b"


def test_who_never_helps_rests_and_is_tried_again() -> None:
    good, bad = Member([1, 2]), Member([7, 8, 6, 5])
    hybrid, one = _hybrid(good, bad)
    for _ in range(200):
        _round(hybrid, one, right=[1, 2])
    late = bad.budgets[-100:]
    assert 1 <= sum(budget > 0 for budget in late) <= 8
    assert min(good.budgets) > 0


def test_nobody_waits_for_one_that_rests() -> None:
    good, bad = Member([1, 2]), Member([7, 8, 6, 5])
    hybrid, one = _hybrid(good, bad)
    for _ in range(200):
        _round(hybrid, one, right=[1, 2])
    bad.is_ready = False
    assert hybrid.ready(one, 0.0)
    good.is_ready = False
    assert not hybrid.ready(one, 0.0)


def test_one_that_keeps_the_others_waiting_must_bring_more() -> None:
    """Two tokens a round are worth their rows, but not ten passes of waiting."""
    for wait_s, stays in ((0.0, True), (0.05, False)):
        good, slow = Member([1, 2, 3]), Member([4, 5])
        hybrid, one = _hybrid(good, slow)
        now = 0.0
        for index in range(200):
            slow.is_ready = False
            now += 0.005
            if not hybrid.ready(one, now):
                now += wait_s
                slow.is_ready = True
            _round(hybrid, one, right=[4, 5] if index % 2 else [1, 2, 3], now=now)
        took_part = sum(budget > 0 for budget in slow.budgets[-100:])
        assert (took_part > 90) == stays


def test_a_request_bounds_the_tree_not_each_member() -> None:
    hybrid, one = _hybrid(Member([1, 2, 3]), Member([4, 5, 6]), draft_tokens=4)
    assert len(_round(hybrid, one, right=[])) == 1 + 4


def test_all_are_closed() -> None:
    a, b = Member([1]), Member([2])
    hybrid, one = _hybrid(a, b)
    hybrid.close(one)
    assert (a.closed, b.closed) == (1, 1)
