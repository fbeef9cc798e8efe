"""Lossless in distribution: keep a drawn token with probability min(1, p/q).

At each node its drawn children are tried in the order they were drawn. One that is rejected
leaves the residual max(0, p - q), renormalised, to the next (Leviathan et al. 2023; Chen et al.
2023; recursively over siblings, Miao et al. 2024, Jeon et al. 2024). What is left after the last
is sampled; where that token is a child nobody drew (a guess of Medusa's or of an n-gram), the
walk goes on there: a guess is a draw from a distribution with one token, and this is what the
same rule makes of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.model.noise import uniforms
from common.model.tree import TokenTree
from verifier.acceptance.base import Scores


class Rejection:
    """The rule; see the module."""

    def asks(self, tree: TokenTree) -> list[int]:
        """Nodes with children that were drawn."""
        return [*tree.draws]

    def __call__(self, scores: Scores) -> tuple[list[int], int]:
        """Returns the accepted nodes from the root's child down, and the token that follows."""
        tree, accepted, node = scores.tree, list[int](), 0
        luck = _luck(scores) if tree.draws else {}
        while True:
            child, token = None, scores.choices[node]
            if node in luck:
                child, token = _step(scores, node, luck[node])
            if child is None:
                child = tree.child(node, token)
            if child is None:
                return accepted, token
            accepted.append(child)
            node = child


def _luck(scores: Scores) -> dict[int, NDArray[np.float64]]:
    """Uniform numbers for nodes with children that were drawn: see `_step`."""
    nodes = [*scores.tree.draws]
    rows = [scores.rows[node] for node in nodes]
    count = max(map(len, scores.tree.draws.values())) + 1
    luck = uniforms([row.params.seed for row in rows], [row.position for row in rows], count)
    return dict(zip(nodes, luck, strict=True))


def _step(scores: Scores, node: int, luck: NDArray[np.float64]) -> tuple[int | None, int]:
    """The drawn child that is kept, or the token sampled in its place.

    Args:
        scores: Of the tree.
        node: A node with children that were drawn.
        luck: Uniform numbers, one for each of these children and one for what is left.
    """
    rest = scores.after[node]
    for (child, drawn), chance in zip(scores.tree.draws[node], luck, strict=False):
        token = scores.tree.ids[child]
        if chance * drawn.probability(token) < rest.chance(token):
            return child, token
        residual = rest.without(drawn)
        if residual is None:  # p equals q but for rounding, and would have kept the token
            return child, token
        rest = residual
    return None, rest.at(luck[-1])
