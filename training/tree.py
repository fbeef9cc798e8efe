"""The search for a sparse tree of guesses: which ranks of which heads are worth a row.

A node's worth is the probability that its whole path is right: the expected tokens of a pass are
1 plus the sum over the nodes. No child is worth more than its parent, so taking the most valuable
node again and again gives the best tree of every size. How many nodes pay depends on what a pass
of so many rows costs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from common.model.medusa.weights import Tree
from common.step_table import seconds_of
from training.acceptance import Found, accuracies

MOST_RANKS = 10
"""Ranks of a head that may stand in a tree."""

_PRIOR_POSITIONS = 20
"""Weight of the product of single accuracies beside the measured paths, in positions: it orders
paths too rare to have been measured."""


@dataclass(frozen=True)
class Choice:
    """A tree and what it promises.

    Attributes:
        tree: Its paths.
        tokens: Expected tokens of a pass.
        step_ms: Time of a pass with the root and all nodes, ms.
    """

    tree: Tree
    tokens: float
    step_ms: float

    @property
    def tokens_per_s(self) -> float:
        """What it is chosen by."""
        return 1000 * self.tokens / self.step_ms


class PathWorth:
    """Probability of every path of ranks, domains weighing the same.

    The share of positions at which the whole path was right, drawn towards the product of the
    heads' accuracies: heads are often right together, which the product alone does not see.

    Args:
        domains: Measured ranks, a domain each.
        most_ranks: Ranks from here on are never right.
    """

    def __init__(self, domains: Sequence[Found], most_ranks: int = MOST_RANKS) -> None:
        self.num_heads = len(domains[0][0][0])
        self.most_ranks = most_ranks
        self._accuracies: list[list[list[float]]] = []
        self._shares: list[Mapping[tuple[int, ...], float]] = []
        self._priors: list[float] = []
        for found in domains:
            table: Tensor = accuracies(found, most_ranks)
            rows = [row for text in found for row in text]
            counts = Counter(tuple(row[:n]) for row in rows for n in range(1, len(row) + 1))
            total = len(rows) + _PRIOR_POSITIONS
            self._accuracies.append(table.tolist())
            self._shares.append({path: count / total for path, count in counts.items()})
            self._priors.append(_PRIOR_POSITIONS / total)

    def __call__(self, path: tuple[int, ...]) -> float:
        """The probability that all of a path is right."""
        worth = 0.0
        measured = zip(self._shares, self._accuracies, self._priors, strict=True)
        for shares, table, prior in measured:
            product = 1.0
            for head, rank in enumerate(path):
                product *= table[head][rank]
            worth += shares.get(path, 0.0) + prior * product
        return worth / len(self._shares)

    def ranks_of(self, head: int) -> list[float]:
        """A head's share of tokens at each rank, domains weighing the same."""
        tables = [table[head] for table in self._accuracies]
        return [sum(column) / len(tables) for column in zip(*tables, strict=True)]


def grow(worth: PathWorth) -> Iterator[tuple[tuple[int, ...], float]]:
    """Paths from the most valuable on, each after its parent, with their probability."""
    waiting: list[tuple[float, tuple[int, ...]]]
    waiting = [(-worth((rank,)), (rank,)) for rank in range(worth.most_ranks)]
    heapq.heapify(waiting)
    while waiting:
        negative, path = heapq.heappop(waiting)
        yield path, -negative
        if len(path) < worth.num_heads:
            for rank in range(worth.most_ranks):
                child = (*path, rank)
                heapq.heappush(waiting, (max(negative, -worth(child)), child))


def of_size(worth: PathWorth, nodes: int) -> Tree:
    """The best tree of so many nodes beside the root."""
    return tuple(path for path, _ in islice(grow(worth), nodes))


def choices(worth: PathWorth, step_ms: Mapping[int, float], most_rows: int) -> list[Choice]:
    """The best tree of every size.

    Args:
        worth: Of paths.
        step_ms: Time of a pass, ms, by its rows, the root among them; two entries at least,
            read linearly between.
        most_rows: Of the largest tree, the root among them.

    Returns:
        One choice for each count of rows from 1 to that, or to the highest in the table.
    """
    table = sorted(step_ms.items())
    found = [Choice((), 1.0, seconds_of(table, 1))]
    paths: list[tuple[int, ...]] = []
    tokens = 1.0
    for path, probability in islice(grow(worth), min(most_rows, max(step_ms)) - 1):
        paths.append(path)
        tokens += probability
        found.append(Choice(tuple(paths), tokens, seconds_of(table, len(paths) + 1)))
    return found
