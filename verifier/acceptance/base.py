"""What an acceptance rule is given, and what it decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from common.model.distribution import Distribution, distributions
from common.model.output import Output, rows_of
from common.model.row import Row
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
    """Row of the root among those whose logits were wanted; those of the other nodes follow."""
    row: int = 0
    """Row of the text's first among all."""

    def distributions(self, nodes: Sequence[int]) -> list[Distribution]:
        """What the tokens after nodes are sampled from.

        Greedy sampling puts all weight on the token it chooses.
        """
        if self.rows[0].params.greedy:
            return [Distribution(np.array([self.choices[node]]), np.ones(1)) for node in nodes]
        logits = rows_of(self.output.logits, [self.first + node for node in nodes])
        return distributions(logits, [self.rows[node] for node in nodes])


Rule = Callable[[Scores], tuple[list[int], int]]
"""Returns the accepted nodes from the root's child down, and the token that follows them."""
