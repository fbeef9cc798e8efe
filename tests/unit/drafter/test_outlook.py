"""Outcomes are drafted for in the order of their probability, as rounds have shown it."""

from __future__ import annotations

import random

import pytest

from drafter.nodes import Node
from drafter.outlook import Odds, outcomes


def _chain(tokens: list[int]) -> tuple[Node, list[Node]]:
    """A root and a chain; the runners-up of a node choosing t are 100 + t and 200 + t."""
    root = node = Node(0, 9)
    chain = []
    for token in tokens:
        node.choice, node.others = token, (100 + token, 200 + token)
        node = node.child(token)
        chain.append(node)
    return root, chain


def _train(odds: Odds, acceptance: float, coverage: float, rounds: int = 600) -> None:
    draw = random.Random(0)
    for _ in range(rounds):
        root, chain = _chain([1, 2, 3])
        right = 0
        while right < 3 and draw.random() < acceptance:
            right += 1
        bonus = 100 + right + 1 if draw.random() < coverage else 77
        odds.observe(chain, root, [*(node.token for node in chain[:right]), bonus])


@pytest.mark.parametrize(("acceptance", "coverage"), [(0.3, 0.8), (0.8, 0.3)])
def test_odds_are_learnt_from_rounds(acceptance: float, coverage: float) -> None:
    odds = Odds()
    _train(odds, acceptance, coverage)
    assert odds.acceptance == pytest.approx(acceptance, abs=0.12)
    assert odds.coverage(0) == pytest.approx(coverage, abs=0.2)
    assert odds.coverage(9) == 0.0


@pytest.mark.parametrize(("acceptance", "late"), [(0.9, True), (0.1, False)])
def test_late_breaks_are_drafted_for_where_they_are_reached(acceptance: float, late: bool) -> None:
    root, chain = _chain([1, 2, 3])
    odds = Odds()
    _train(odds, acceptance, coverage=0.6)
    found = outcomes([root, *chain[:-1]], odds, fanout=1, most=9)
    assert found[0] == (root, 101), "the first token decides most often"
    assert ((chain[1], 103) in found) == late


def test_no_more_outcomes_than_there_is_room_for() -> None:
    root, chain = _chain([1, 2, 3])
    assert len(outcomes([root, *chain[:-1]], Odds(), fanout=2, most=2)) == 2
    assert outcomes([root, *chain[:-1]], Odds(), fanout=0, most=9) == []


def test_what_another_method_accepted_is_not_the_chains_merit() -> None:
    """The chain broke at once; an n-gram went on with five tokens more."""
    odds = Odds()
    for _ in range(600):
        root, chain = _chain([1, 2, 3])
        odds.observe(chain, root, [101, 50, 51, 52, 53, 54])
    assert odds.acceptance < 0.1
    assert odds.coverage(0) > 0.8
