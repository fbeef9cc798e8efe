"""What an acceptance rule is given, and what it decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from common.model.distribution import Distribution, Listed, distributions
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
    after: Mapping[int, Distribution] = MappingProxyType({})
    """By node that the rule asks about: what the token after it is sampled from."""


class Rule(Protocol):
    """Decides what of a draft is kept."""

    def asks(self, tree: TokenTree) -> Sequence[int]:
        """Nodes of which it has to know what the next token is sampled from."""

    def __call__(self, scores: Scores) -> tuple[list[int], int]:
        """Returns the accepted nodes from the root's child down, and the token that follows."""


def weighed(scores: Sequence[Scores], rules: Sequence[Rule]) -> list[Scores]:
    """Scores with what their rules ask for, which is computed of all texts at once.

    Greedy sampling puts all weight on the token it chooses.

    Args:
        scores: Of one pass.
        rules: Of each.
    """
    asked = [rule.asks(one.tree) for one, rule in zip(scores, rules, strict=True)]
    if not any(asked):
        return [*scores]
    places, rows = list[int](), list[Row]()
    for one, nodes in zip(scores, asked, strict=True):
        open_ = [node for node in nodes if not one.rows[node].params.greedy]
        places += [one.first + node for node in open_]
        rows += [one.rows[node] for node in open_]
    found = iter(distributions(rows_of(scores[0].output.logits, places), rows))
    return [
        one._replace(after={node: _sure(one, node) or next(found) for node in nodes})
        for one, nodes in zip(scores, asked, strict=True)
    ]


def _sure(scores: Scores, node: int) -> Listed | None:
    if not scores.rows[node].params.greedy:
        return None
    return Listed(np.array([scores.choices[node]]), np.ones(1))
