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

import torch
from torch import Tensor

from common.model.noise import gumbel_rows, uniforms
from common.model.tree import Drawn
from verifier.acceptance.base import Scores


def rejection(scores: Scores) -> tuple[list[int], int]:
    """The rule; see the module."""
    tree, accepted, node = scores.tree, list[int](), 0
    while True:
        child, token = _step(scores, node)
        if child is None:
            child = tree.child(node, token)
        if child is None:
            return accepted, token
        accepted.append(child)
        node = child


def _step(scores: Scores, node: int) -> tuple[int | None, int]:
    """The drawn child that is kept, or the token sampled in its place."""
    draws = scores.tree.draws.get(node, ())
    if not draws:
        return None, scores.choices[node]
    row, rest = scores.rows[node], scores.probabilities(node)
    chances = uniforms(row.params.seed, row.position, len(draws))
    for (child, drawn), chance in zip(draws, chances, strict=True):
        token = scores.tree.ids[child]
        if chance * drawn.probability(token) < float(rest[token]):
            return child, token
        residual = _residual(rest, drawn)
        if residual is None:  # p equals q but for rounding, and would have kept the token
            return child, token
        rest = residual
    noise = gumbel_rows([row.params.seed], [row.position], len(rest), "cpu")[0]
    return None, int((rest.log() + noise).argmax())


def _residual(rest: Tensor, drawn: Drawn) -> Tensor | None:
    """max(0, p - q), renormalised; None where nothing is left."""
    left = rest.clone()
    left[torch.tensor(drawn.ids)] -= torch.tensor(drawn.probabilities, dtype=torch.float64)
    left.clamp_(min=0)
    total = float(left.sum())
    return left / total if total > math.ulp(1.0) else None
