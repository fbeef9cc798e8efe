"""What an acceptance rule is given, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from common.model.output import Output
from common.model.sampling import Row, warp
from common.model.tree import TokenTree


class Scores(NamedTuple):
    """One sequence's tree as the target sees it."""

    tree: TokenTree
    """What was drafted."""
    choices: Sequence[int]
    """The target's own keyed sample after each node, `[nodes]`."""
    rows: Sequence[Row]
    """Sampling, position and history of each node, `[nodes]`."""
    output: Output
    """Of the pass that computed them."""
    first: int = 0
    """Row of the root among its; those of the other nodes follow."""

    def probabilities(self, node: int) -> Tensor:
        """What the token after a node is sampled from, float64 on the CPU, `[V]`.

        Greedy sampling puts all weight on the token it chooses.
        """
        at, logits = self.first + node, self.output.logits
        if self.rows[node].params.greedy:
            sure = logits.new_zeros(logits.shape[1], device="cpu").double()
            sure[self.choices[node]] = 1.0
            return sure
        warped = warp(logits[at : at + 1], [self.rows[node]])[0]
        return warped.cpu().double().softmax(-1)


Rule = Callable[[Scores], tuple[list[int], int]]
"""Returns the accepted nodes from the root's child down, and the token that follows them."""
