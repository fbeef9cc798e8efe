"""Drafted tokens of one session: a tree below the last committed one.

Each node is one token. Its keys and values lie in a slot of its own until it is committed; what
the model makes of it (the token it chooses next, and its next best ones) is known once it is
computed. The tree is re-rooted at every commit, so nodes know their position in the text that is
held rather than their depth.

Of what is drafted ahead most is never looked at again. So tokens that were computed in one call
along the choices after a node are kept with it as they came, its tail, and become nodes where
somebody asks for one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.model.tree import Drawn


class Tail(NamedTuple):
    """Computed tokens: the choice after a node, the choice after that, and so on."""

    slots: Sequence[int]
    """Of their keys and values."""
    ids: Sequence[Sequence[int]]
    """The choice after each of them, and the next best tokens."""
    behind: Sequence[Sequence[float]] | None
    """How much less the scores of those are than the choice's, its own 0 included; None where the
    next best are not known."""

    def choices(self) -> Iterator[tuple[int, float | None]]:
        """See `Node.choices`."""
        if self.behind is None:
            return ((ids[0], None) for ids in self.ids)
        lines = zip(self.ids, self.behind, strict=True)
        return ((ids[0], gaps[1] if len(gaps) > 1 else math.inf) for ids, gaps in lines)


@dataclass(eq=False)
class Node:
    """One token, committed (a root) or drafted."""

    token: int
    """Its id."""
    position: int
    """In the text that is held, see `Text`."""
    parent: Node | None = None
    """None for the root."""
    slot: int = -1
    """Where its keys and values go; a root's are in the slot of its position."""
    computed: bool = False
    """Whether they are there."""
    choice: int | None = None
    """The token the model chooses after it, once computed."""
    drawn: Drawn | None = None
    """What that choice was drawn from, where that is wanted."""
    others: Sequence[int] = ()
    """The next best tokens after the choice, best first."""
    behind: Sequence[float] | None = None
    """How much less their scores are than the choice's; None where `others` are not known."""
    children: dict[int, Node] = field(default_factory=dict)
    """By token."""
    tail: Tail | None = None
    """The choice is a child in it, where there is one; it is none of `children`."""

    def rank(self, ids: Sequence[int], behind: Sequence[float] | None) -> None:
        """Takes note of what the model makes of it: its choice, and what comes next if known."""
        self.choice, *self.others = ids
        self.behind = behind if behind is None else behind[1:]
        self.computed = True

    def lead(self) -> float | None:
        """How far the next best token is behind the choice: infinitely where there is no other;
        None where nobody knows."""
        if self.behind is None:
            return None
        return self.behind[0] if self.behind else math.inf

    def choices(self) -> Iterator[tuple[int, float | None]]:
        """Its choice, and those of its tail: each with its lead."""
        if self.choice is not None:
            yield self.choice, self.lead()
        if self.tail is not None:
            yield from self.tail.choices()

    def slots(self) -> Sequence[int]:
        """Of it and its tail, as far as they have any."""
        own = [self.slot] if self.slot >= 0 else []
        return own if self.tail is None else [*own, *self.tail.slots]

    def path(self) -> list[Node]:
        """From the root's child down to this node; empty for the root."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def child(self, token: int) -> Node:
        """The child with this token, made if it is not there."""
        child = self._find(token)
        if child is None:
            child = self.children[token] = Node(token, self.position + 1, self)
        return child

    def follow(self, ids: Sequence[int]) -> list[Node]:
        """The drafted nodes along these ids, up to the first that is not drafted."""
        nodes, node = [], self
        for token in ids:
            child = node._find(token)
            if child is None:
                break
            nodes.append(child)
            node = child
        return nodes

    def below(self) -> Iterator[Node]:
        """All nodes under this one, but for those that tails are yet."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _find(self, token: int) -> Node | None:
        if self.tail is not None and token == self.choice:
            self._unfold(self.tail)
        return self.children.get(token)

    def _unfold(self, tail: Tail) -> None:
        """Makes nodes of its tail."""
        self.tail, node = None, self
        for at, slot in enumerate(tail.slots):
            assert node.choice is not None
            child = Node(node.choice, node.position + 1, node, slot)
            child.rank(tail.ids[at], None if tail.behind is None else tail.behind[at])
            node.children[child.token] = child
            node = child


def drawn_from(branch: Sequence[Node]) -> tuple[Drawn, ...]:
    """What the tokens of a branch were drawn from, up to the first of which that is not known.

    If there are any, the branch ends there: to take them for guesses because of one that came after
    them would hang on what they are, and those left would be drawn from something else.
    """
    known: list[Drawn] = []
    for node in branch:
        if node.parent is None or node.parent.drawn is None:
            break
        known.append(node.parent.drawn)
    return tuple(known)
