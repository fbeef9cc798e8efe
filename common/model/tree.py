"""Token trees: what every speculation method proposes and one forward pass scores.

Node 0 is the last committed token; every other node continues its parent. Siblings have
different ids, so that a tree is a trie and a walk is never ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Drawn:
    """The distribution a draft token was drawn from, renormalised over few tokens."""

    ids: tuple[int, ...]
    """Tokens that could have been drawn."""
    probabilities: tuple[float, ...]
    """Of each; they add up to 1."""

    def probability(self, token: int) -> float:
        """Of one token."""
        return self.probabilities[self.ids.index(token)] if token in self.ids else 0.0


class TokenTree:
    """A trie of draft tokens below the last committed one.

    Args:
        root: Id of the last committed token.
    """

    def __init__(self, root: int) -> None:
        self.ids: list[int] = [root]
        """Token id of each node, `[nodes]`; parents stand before their children."""
        self.parents: list[int] = [-1]
        """Index of each node's parent, `[nodes]`; -1 for the root."""
        self.depths: list[int] = [0]
        """Steps from the root, `[nodes]`."""
        self.owners: list[str] = [""]
        """Which proposer added each node, `[nodes]`."""
        self.owner = ""
        """Whose nodes are added from now on."""
        self.draws: dict[int, list[tuple[int, Drawn]]] = {}
        """Children that were drawn, by their parent: in order, with what each was drawn from. A
        child may have been drawn twice. Children that are not here were guessed."""
        self._probes: set[int] = set()
        self._again: dict[int, set[str]] = {}  # who else wanted a node
        self._children: list[dict[int, int]] = [{}]
        self._cover: list[list[int]] = []  # of the nodes so far; none while there is a newer one

    @classmethod
    def chain(cls, root: int, ids: Iterable[int]) -> TokenTree:
        """A tree of one path."""
        tree = cls(root)
        tree.add_path(ids)
        return tree

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def draft_tokens(self) -> int:
        """Nodes beside the root, without probes."""
        return len(self.ids) - 1 - len(self._probes)

    def add(self, parent: int, token: int) -> int:
        """Adds a child, or finds the one that is there.

        Args:
            parent: Index of an existing node.
            token: Id of the child.

        Returns:
            Index of the child.
        """
        known = self._children[parent].get(token)
        if known is not None:
            self._probes.discard(known)
            if self.owner != self.owners[known]:
                self._again.setdefault(known, set()).add(self.owner)
            return known
        node = len(self.ids)
        self._cover = []
        self.ids.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self._children.append({})
        self._children[parent][token] = node
        self.owners.append(self.owner)
        return node

    def backers(self, bits: Mapping[str, int]) -> list[int]:
        """Who wanted each node, as sets of bits; the root's is 0.

        Args:
            bits: Of each proposer.
        """
        found = [bits.get(owner, 0) for owner in self.owners]
        for node, others in self._again.items():
            for owner in others:
                found[node] |= bits.get(owner, 0)
        return found

    def draw(self, parent: int, token: int, drawn: Drawn) -> int:
        """Adds or finds a node whose id was drawn at random; see `draws`."""
        node = self.add(parent, token)
        self.draws.setdefault(parent, []).append((node, drawn))
        return node

    def probe(self, parent: int, token: int) -> int:
        """Adds or finds a node whose logits a proposer wants, without drafting it.

        It may turn out right all the same, and is then committed like any other.
        """
        known = self.child(parent, token)
        if known is not None:
            return known
        node = self.add(parent, token)
        self._probes.add(node)
        return node

    def probes(self, nodes: Iterable[int]) -> int:
        """How many of these nodes are probes."""
        return sum(1 for node in nodes if node in self._probes) if self._probes else 0

    def add_path(self, ids: Iterable[int]) -> int:
        """Adds a chain below the root, sharing what is there; returns its last node."""
        if len(self.ids) == 1:
            return self._begin_with(list(ids))
        node = 0
        for token in ids:
            node = self.add(node, token)
        return node

    def _begin_with(self, ids: list[int]) -> int:
        """A chain of new nodes below the root, which is alone: what most drafts are."""
        count = len(ids)
        self.ids += ids
        self.parents += range(count)
        self.depths += range(1, count + 1)
        self.owners += [self.owner] * count
        self._children = [{token: node} for node, token in enumerate(ids, 1)]
        self._children.append({})
        self._cover = [list(range(count + 1))]
        return count

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` with this id, if there is one."""
        return self._children[node].get(token)

    def children(self, node: int) -> Sequence[int]:
        """Children of `node` in the order they were added."""
        return list(self._children[node].values())

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`; empty for the root."""
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def path_cover(self) -> list[list[int]]:
        """Splits the nodes into downward runs, so that each node stands in exactly one.

        A run starts at a node whose parent lies in an earlier run and follows first children.
        Every run lies on one root-to-leaf path, so its rows can share one list of keys.

        Returns:
            Runs of node indices, not to be changed; the first starts at the root.
        """
        if not self._cover:
            self._cover = self._runs()
        return self._cover

    def _runs(self) -> list[list[int]]:
        runs = []
        starts = [0]
        while starts:
            node = starts.pop()
            run = []
            while True:
                run.append(node)
                below = list(self._children[node].values())
                if not below:
                    break
                starts.extend(reversed(below[1:]))
                node = below[0]
            runs.append(run)
        return runs
