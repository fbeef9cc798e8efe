"""Which outcomes of a round to draft for while it is being verified.

A chain of K tokens is in flight. Its outcome is (k, bonus): k of them are right, and the token
the target chose follows. How likely each is follows from how sure the draft model was: where the
next best token's score is far behind the choice's the two models hardly ever differ, and where it
is close behind the target takes it almost as often. What scores so far apart came to is counted,
over all texts of a kind. The chance of an outcome is that of all choices before the break times
that of the bonus there; outcomes are drafted for in that order (the fan-out rule of Kumar et al.
2026, with chances by the scores at hand rather than by the place in the chain).

The same chances say how long a branch is worth checking.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect
from collections.abc import Sequence
from itertools import chain as joined
from itertools import pairwise, repeat
from operator import itemgetter
from typing import NamedTuple

from drafter.nodes import Node

_LEAST = 0.02
"""Outcomes less likely than this are not worth a row."""

_BOUNDS = (0.1, 0.2, 0.3, 0.45, 0.65, 0.9, 1.2, 1.6, 2.2, 3.0, 4.5)
"""Of how much less one score is than another, in nats where nothing is drawn: within two of them
chances are about the same."""

_RANKS = 3
"""Next best tokens whose chances are told apart; any after these count as the last."""

_ACCEPTED = 0.7
"""What to believe at first of choices whose scores nobody knows."""

_PRIOR = 16.0
_MOST = 2000.0
"""Tokens that what is known of one range is worth at first, and at most: the past is forgotten."""

Outcome = tuple[int, int]
"""Accepted tokens of the chain, and the bonus."""


class ChoiceKind(NamedTuple):
    """Choices of which what one comes to is told by others."""

    greedy: bool
    """Whether they are the likeliest tokens."""
    drawn: bool
    """Whether they are drawn independently of the target."""
    length: int
    """Of all of the text before them, see `doublings`: how the target goes on hangs on that,
    however little of it the draft model is shown."""


class Chances:
    """How often tokens were right, by how far scores were apart."""

    bounds = array("f", _BOUNDS)
    """Between ranges of how far."""

    def __init__(self) -> None:
        gaps = [0.05, *(0.5 * (low + high) for low, high in pairwise(_BOUNDS)), 6.0]
        choice = [1 - 0.5 * math.exp(-1.2 * gap) for gap in gaps]
        other = [0.35 * math.exp(-2 * gap) for gap in gaps]
        self._chances = [choice, *(list(other) for _ in range(_RANKS))]  # by rank and range
        self._tested = [[_PRIOR] * len(gaps) for _ in self._chances]
        self._right = [[_PRIOR * chance for chance in line] for line in self._chances]
        self._all = (_PRIOR * _ACCEPTED, _PRIOR)  # choices that were right, and all
        self.by_range = array("f", choice)
        """That a choice is right, for each range."""

    def of_choice(self, node: Node) -> float:
        """Chance that the target chooses as the draft model did after a node."""
        return self.of_lead(node.lead())

    def of_lead(self, lead: float | None) -> float:
        """The same for a choice with such a lead; None where nobody knows it."""
        if lead is None:
            right, tested = self._all
            return right / tested
        return self._chances[0][bisect(_BOUNDS, lead)]

    def of_others(self, node: Node) -> list[float]:
        """Chance of each of the next best tokens there."""
        gaps, lines = node.behind or (), joined(self._chances[1:], repeat(self._chances[-1]))
        return [line[bisect(_BOUNDS, gap)] for gap, line in zip(gaps, lines, strict=False)]

    def observe(self, chain: Sequence[Node], root: Node, ids: Sequence[int]) -> None:
        """Learns from a round.

        Args:
            chain: What was in flight.
            root: The node before it.
            ids: What was committed.
        """
        for node, token in zip((root, *chain), ids, strict=False):
            if node.choice is not None:
                self._all = _counted(*self._all, node.choice == token)
            lead = node.lead()
            if lead is not None:
                self._count(0, lead, node.choice == token)
                others = zip(node.others, node.behind or (), strict=True)
                for rank, (other, gap) in enumerate(others, 1):
                    self._count(rank, gap, other == token)
            if node.choice != token:
                break  # other methods may have gone on

    def _count(self, rank: int, gap: float, right: bool) -> None:
        line, at = min(rank, _RANKS), bisect(_BOUNDS, gap)
        rights, tested = self._right[line], self._tested[line]
        rights[at], tested[at] = _counted(rights[at], tested[at], right)
        self._chances[line][at] = rights[at] / tested[at]
        if rank == 0:
            self.by_range[at] = self._chances[0][at]


def outcomes(
    root: Node, chain: Sequence[Node], chances: Chances, fanout: int
) -> list[tuple[Node, int]]:
    """The outcomes of a chain in flight that are worth a row, as far as it has been computed.

    Args:
        root: The node before it.
        chain: It.
        chances: What rounds have shown.
        fanout: Most bonus guesses for each accepted length, beside the choice after all of it.

    Returns:
        For each the last accepted node and the bonus, likeliest first.
    """
    found: list[tuple[float, Node, int]] = []
    reached = 1.0
    for accepted, node in enumerate((root, *chain)):
        if node.behind is None or reached < _LEAST:
            break
        for chance, token in zip(chances.of_others(node)[:fanout], node.others, strict=False):
            if reached * chance >= _LEAST:
                found.append((reached * chance, node, token))
        reached *= chances.of_choice(node)
        if accepted == len(chain) and node.choice is not None and reached >= _LEAST:
            found.append((reached, node, node.choice))
    found.sort(key=itemgetter(0), reverse=True)
    return [(node, token) for _, node, token in found]


def _counted(right: float, tested: float, new: bool) -> tuple[float, float]:
    """Counts of what was right and of all, after one more."""
    kept = min(1.0, _MOST / (tested + 1))
    return kept * (right + new), kept * (tested + 1)
