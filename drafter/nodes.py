"""Drafted tokens of one session: a tree below the last committed one.

Each node is one token. Its keys and values lie in a slot of its own until it is committed; what
the model makes of it (the token it chooses next, and its next best ones) is known once it is
computed. The tree is re-rooted at every commit, so nodes know their absolute position rather than
their depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from common.model.tree import Drawn


@dataclass(eq=False)
class Node:
    """One token, committed (a root) or drafted."""

    token: int
    """Its id."""
    position: int
    """Absolute."""
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

    def rank(self, ids: Sequence[int], behind: Sequence[float] | None) -> None:
        """Takes note of what the model makes of it: its choice, and what comes next if known."""
        self.choice, *self.others = ids
        self.behind = behind if behind is None else behind[1:]
        self.computed = True

    def path(self) -> list[Node]:
        """From the root's child down to this node; empty for the root."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def child(self, token: int) -> Node:
        """The child with this token, made if it is not there."""
        if token not in self.children:
            self.children[token] = Node(token, self.position + 1, self)
        return self.children[token]

    def follow(self, ids: Sequence[int]) -> list[Node]:
        """The drafted nodes along these ids, up to the first that is not drafted."""
        nodes, node = [], self
        for token in ids:
            child = node.children.get(token)
            if child is None:
                break
            nodes.append(child)
            node = child
        return nodes

    def below(self) -> Iterator[Node]:
        """All nodes under this one."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
