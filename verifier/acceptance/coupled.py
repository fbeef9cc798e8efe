"""Exact: the target's own keyed sample is known at every node of the tree.

Walk down while the sample is a child; the first sample that is not ends the round. The tokens
committed are exactly those the target would have chosen one at a time, whatever the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.model.tree import TokenTree
from verifier.acceptance.base import Scores


class Coupled:
    """The rule; see the module."""

    def asks(self, tree: TokenTree) -> Sequence[int]:
        """Nothing but what was chosen."""
        return ()

    def __call__(self, scores: Scores) -> tuple[list[int], int]:
        """Returns the accepted nodes from the root's child down, and the token that follows."""
        return walk(scores.tree, scores.choices)


def walk(tree: TokenTree, samples: Sequence[int]) -> tuple[list[int], int]:
    """Follows the target's samples through a tree.

    Args:
        tree: What was drafted.
        samples: The target's choice of the token after each node, `[nodes]`.

    Returns:
        The accepted nodes from the root's child down, and the token that follows them.
    """
    accepted: list[int] = []
    node = 0
    while True:
        token = samples[node]
        child = tree.child(node, token)
        if child is None:
            return accepted, token
        accepted.append(child)
        node = child
