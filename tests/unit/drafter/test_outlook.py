"""Outcomes are drafted for by their probability, as scores and rounds have shown it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from drafter.nodes import Node
from drafter.outlook import Chances, outcomes

SURE, TORN = (5.0, 6.0), (0.05, 1.0)


def _chain(behind: Sequence[tuple[float, float]]) -> tuple[Node, list[Node]]:
    """A root and a chain 1, 2, …; the runners-up of a node choosing t are 100 + t and 200 + t.

    Each place says how far they are behind; one more than the chain has tokens if its end is
    computed.
    """
    nodes = [Node(0, 9)]
    for token, gaps in enumerate(behind, 1):
        node = nodes[-1]
        node.choice, node.others, node.behind = token, (100 + token, 200 + token), gaps
        nodes.append(node.child(token))
    return nodes[0], nodes[1:]


def _train(chances: Chances, gap: float, right: float, second: float, rounds: int = 3000) -> None:
    """Rounds of one token, right so often, and the next best one so often."""
    draw = random.Random(0)
    for _ in range(rounds):
        root, chain = _chain([(gap, 2.5)])
        drawn = draw.random()
        token = 1 if drawn < right else 101 if drawn < right + second else 77
        chances.observe(chain, root, [token, 9] if token == 1 else [token])


@pytest.mark.parametrize(("right", "second"), [(0.3, 0.6), (0.9, 0.02)])
def test_chances_are_learnt_from_rounds(right: float, second: float) -> None:
    chances = Chances()
    _train(chances, 0.5, right, second)
    root, _ = _chain([(0.5, 2.5)])
    assert chances.of_choice(root) == pytest.approx(right, abs=0.04)
    found = chances.of_others(root)
    assert found == pytest.approx([second, 0.0], abs=0.04)


def test_where_no_scores_are_known_all_choices_tell() -> None:
    """As of drafts that are drawn to be checked by rejection."""
    chances = Chances()
    unknown = Node(0, 9, choice=1)
    assert 0.5 < chances.of_choice(unknown) < 0.9
    for turn in range(2000):
        chances.observe([Node(1, 10)], unknown, [1, 9] if turn % 5 == 0 else [2])
    assert chances.of_choice(unknown) == pytest.approx(0.2, abs=0.02)
    assert outcomes(unknown, [], chances, fanout=2) == []


def test_what_was_is_forgotten() -> None:
    chances = Chances()
    _train(chances, 0.5, 0.95, 0.03, rounds=20_000)
    _train(chances, 0.5, 0.2, 0.7, rounds=10_000)
    root, _ = _chain([(0.5, 2.5)])
    assert chances.of_choice(root) == pytest.approx(0.2, abs=0.05)


def test_at_first_what_is_close_behind_is_likelier() -> None:
    chances = Chances()
    near, _ = _chain([(0.05, 0.5)])
    far, _ = _chain([(2.0, 3.5)])
    assert chances.of_choice(near) < chances.of_choice(far)
    assert chances.of_others(near) > chances.of_others(far)
    for node in (near, far):
        assert chances.of_choice(node) + sum(chances.of_others(node)) <= 1.0
    alone, _ = _chain([(0.05, 0.5)])
    alone.others = alone.behind = ()
    assert chances.of_choice(alone) > 0.95, "nothing else is possible"


def test_a_break_is_expected_where_the_draft_model_was_torn() -> None:
    root, chain = _chain([SURE, SURE, TORN, SURE])
    found = outcomes(root, chain[:-1], Chances(), fanout=2)
    assert found[:2] == [(chain[2], 4), (chain[1], 103)], "all of it, and the break before its end"


def test_late_outcomes_are_left_out_where_they_are_hardly_reached() -> None:
    torn = [(0.05, 0.1)] * 8
    root, chain = _chain(torn)
    found = outcomes(root, chain, Chances(), fanout=2)
    assert found[0] == (root, 101)
    assert (chain[0], 102) in found
    assert (chain[6], 108) not in found


def test_no_more_guesses_than_are_wanted_and_no_outcome_twice() -> None:
    root, chain = _chain([TORN, TORN, TORN])
    found = outcomes(root, chain, Chances(), fanout=2)
    assert len(found) == len(set(found))
    assert outcomes(root, chain, Chances(), fanout=0) == []
    assert all(token < 200 for _, token in outcomes(root, chain, Chances(), fanout=1))


def test_outcomes_end_where_the_chain_is_not_computed_yet() -> None:
    root, chain = _chain([SURE, TORN, TORN])
    chain[0].behind = None
    assert outcomes(root, chain, Chances(), fanout=2) == []
    chain[1].behind = None
    root, chain = _chain([TORN, SURE])
    chain[0].behind = None
    assert outcomes(root, chain, Chances(), fanout=1) == [(root, 101)]


def test_what_another_method_accepted_is_not_the_chains_merit() -> None:
    """The chain broke at once; an n-gram went on with five tokens more."""
    chances = Chances()
    for _ in range(600):
        root, chain = _chain([(0.5, 2.5)] * 3)
        chances.observe(chain, root, [101, 2, 3, 4, 53, 54])
    assert chances.of_choice(root) < 0.1
    assert chances.of_others(root)[0] > 0.8
