"""Medusa's typical acceptance: lossy.

A draft token x is kept where the target finds it typical enough:

    p(x) > min(epsilon, alpha * exp(-H(p)))

with p after temperature and warpers and H its entropy in nats. Of the paths kept the longest
wins, of several as long the likeliest; then the target's own sample follows (Cai et al. 2024,
§2.3.1).
Greedy sampling has no entropy, so nothing but its own choice is typical.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.model.distribution import Distribution
from common.model.tree import TokenTree
from verifier.acceptance.base import Scores


@dataclass(frozen=True, kw_only=True)
class Typical:
    """The rule, with its thresholds."""

    threshold: float = 0.09
    """Probability that is always typical: the paper's epsilon, `posterior_threshold`."""
    alpha: float = 0.3
    """Share of exp(-H) that is typical: the paper's alpha, `posterior_alpha`."""

    def asks(self, tree: TokenTree) -> list[int]:
        """Nodes with children."""
        return [node for node in range(len(tree)) if tree.children(node)]

    def __call__(self, scores: Scores) -> tuple[list[int], int]:
        """Returns the accepted nodes from the root's child down, and the token after them."""
        kept = self._typical(scores)
        best: tuple[int, float, list[int]] = (0, 0.0, [])
        open_paths: list[tuple[list[int], float]] = [([], 0.0)]
        while open_paths:
            path, likelihood = open_paths.pop()
            if (len(path), likelihood) > best[:2]:
                best = (len(path), likelihood, path)
            node = path[-1] if path else 0
            open_paths.extend(
                ([*path, child], likelihood + math.log(chance))
                for child, chance in kept.get(node, ())
            )
        accepted = best[2]
        return accepted, scores.choices[accepted[-1] if accepted else 0]

    def floor(self, next_token: Distribution) -> float:
        """The probability above which a token is typical."""
        return min(self.threshold, self.alpha * math.exp(-next_token.entropy()))

    def _typical(self, scores: Scores) -> dict[int, list[tuple[int, float]]]:
        """Of nodes with children those that are kept, with their probabilities."""
        tree, kept = scores.tree, {}
        for node, found in scores.after.items():
            chances = [(child, found.chance(tree.ids[child])) for child in tree.children(node)]
            floor = self.floor(found)
            kept[node] = [(child, chance) for child, chance in chances if chance > floor]
        return kept
