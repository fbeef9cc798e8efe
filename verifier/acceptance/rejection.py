"""Lossless in distribution: keep a drawn token with probability min(1, p/q).

At each node its drawn children are tried in the order they were drawn. One that is rejected
leaves the residual max(0, p - q), renormalised, to the next (Leviathan et al. 2023; Chen et al.
2023; recursively over siblings, Miao et al. 2024, Jeon et al. 2024). What is left after the last
is sampled; where that token is a child nobody drew (a guess of Medusa's or of an n-gram), the
walk goes on there: a guess is a draw from a distribution with one token, and this is what the
same rule makes of it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from common.model.distribution import Distribution
from common.model.noise import uniforms
from common.model.tree import Drawn
from verifier.acceptance.base import Scores


def rejection(scores: Scores) -> tuple[list[int], int]:
    """The rule; see the module."""
    tree, accepted, node = scores.tree, list[int](), 0
    drawn = _drawn(scores) if tree.draws else {}
    while True:
        child, token = None, scores.choices[node]
        if node in drawn:
            child, token = _step(scores, node, *drawn[node])
        if child is None:
            child = tree.child(node, token)
        if child is None:
            return accepted, token
        accepted.append(child)
        node = child


def _drawn(scores: Scores) -> dict[int, tuple[Distribution, NDArray[np.float64]]]:
    """What decides between children that were drawn, by node: see `_step`."""
    nodes = [*scores.tree.draws]
    rows = [scores.rows[node] for node in nodes]
    count = max(map(len, scores.tree.draws.values())) + 1
    luck = uniforms([row.params.seed for row in rows], [row.position for row in rows], count)
    return dict(zip(nodes, zip(scores.distributions(nodes), luck, strict=True), strict=True))


def _step(
    scores: Scores, node: int, target: Distribution, luck: NDArray[np.float64]
) -> tuple[int | None, int]:
    """The drawn child that is kept, or the token sampled in its place.

    Args:
        scores: Of the tree.
        node: A node with children that were drawn.
        target: What the token after it is sampled from.
        luck: Uniform numbers, one for each of these children and one for what is left.
    """
    rest = target
    for (child, drawn), chance in zip(scores.tree.draws[node], luck, strict=False):
        token = scores.tree.ids[child]
        if chance * drawn.probability(token) < rest.chance(token):
            return child, token
        residual = _residual(rest, drawn)
        if residual is None:  # p equals q but for rounding, and would have kept the token
            return child, token
        rest = residual
    return None, rest.at(luck[-1])


def _residual(rest: Distribution, drawn: Drawn) -> Distribution | None:
    """max(0, p - q), renormalised; None where nothing is left."""
    tokens, left = np.array(drawn.ids), rest.chances.copy()
    at = rest.ids.searchsorted(tokens).clip(max=len(rest.ids) - 1)
    common = rest.ids[at] == tokens
    left[at[common]] -= np.array(drawn.probabilities)[common]
    left.clip(min=0, out=left)
    total = float(left.sum())
    return Distribution(rest.ids, left / total) if total > math.ulp(1.0) else None
