"""Tokens in a tail are those that nodes would be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drafter.branch import Branch, Round
from drafter.nodes import Node, Tail
from drafter.outlook import Chances

_ENDED = Round(base=3, path_hash=0, accepted=0, ids=(7,), draft_tokens=9)

_KNOWN = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=2, max_size=2), st.floats(0, 6, width=32)),
    min_size=1,
    max_size=8,
)


def _both(known: list[tuple[list[int], float]], *, told: bool) -> tuple[Node, Node]:
    """What is known of a node and of the choices after it: in a tail, and as nodes."""
    ids = [found for found, _ in known]
    behind = [[0.0, gap] for _, gap in known] if told else None
    slots = list(range(10, 9 + len(known)))
    folded, node = Node(7, 3), Node(7, 3)
    folded.rank(ids[0], behind[0] if behind else None)
    if slots:
        folded.tail = Tail(slots, ids[1:], behind[1:] if behind else None)
    unfolded = node
    for at, found in enumerate(ids):
        node.rank(found, behind[at] if behind else None)
        if at < len(slots):
            node = node.child(found[0])
            node.slot = slots[at]
    return folded, unfolded


def _tree(root: Node) -> list[tuple[object, ...]]:
    return [
        (node.position, node.token, node.slot, node.computed, node.choice, node.others, node.behind)
        for node in (root, *root.below())
    ]


@given(known=_KNOWN, ids=st.lists(st.integers(0, 5), max_size=8), told=st.booleans())
def test_they_are_followed(
    known: list[tuple[list[int], float]], ids: list[int], told: bool
) -> None:
    folded, unfolded = _both(known, told=told)
    held = sorted(folded.slots())
    assert held == sorted(slot for node in unfolded.below() for slot in node.slots())
    path = folded.follow(ids)
    assert [node.token for node in path] == [node.token for node in unfolded.follow(ids)]
    assert held == sorted(slot for node in (folded, *folded.below()) for slot in node.slots()), (
        "no slot is lost, or twice there"
    )
    folded.child(known[0][0][0])
    unfolded.child(known[0][0][0])
    assert _tree(folded) == _tree(unfolded)


def test_the_last_of_the_least_chances_is_that_of_all_further_tokens() -> None:
    of = _ENDED._replace(least=(0.5, 0.3)).least_of
    assert [of(token) for token in range(4)] == [0.5, 0.3, 0.3, 0.3]
    assert _ENDED.least_of(0) == 0


@given(
    known=_KNOWN,
    wanted=st.integers(1, 9),
    least=st.lists(st.floats(0, 1), max_size=9).map(tuple),
    told=st.booleans(),
)
def test_a_branch_grows_by_them(
    known: list[tuple[list[int], float]], wanted: int, least: tuple[float, ...], told: bool
) -> None:
    folded, unfolded = (
        Branch(_ENDED._replace(least=least), node, wanted) for node in _both(known, told=told)
    )
    for branch in (folded, unfolded):
        branch.grow(Chances())
    assert folded.ids == unfolded.ids
    assert (folded.right, folded.lacking) == (unfolded.right, unfolded.lacking)
    assert [node.token for node in folded.nodes()] == folded.ids
    assert [node.slot for node in folded.nodes()] == [node.slot for node in unfolded.nodes()]
    if folded.lacking:
        assert folded.leaf.choice is None, "it goes on where nothing is computed"
