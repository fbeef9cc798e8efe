"""Which outcomes of a round to draft for while it is being verified.

A chain of K tokens is in flight. Its outcome is (k, bonus): k of them are right, and the token
the target chose follows. With acceptance α, k < K has the probability α^k (1 - α) and k = K has
α^K. Where the target disagreed after k tokens the draft model's own choice is ruled out, and the
bonus is most likely the next best token of the draft model, ranked by the same keyed noise; after
the whole chain it is most likely the model's choice. Outcomes are taken in order of probability
(the fan-out rule of Kumar et al. 2026, with coverage as measured rather than a power law).
"""

from __future__ import annotations

from collections.abc import Sequence

from drafter.nodes import Node

_LEAST = 0.02
"""Outcomes less likely than this are not worth a row."""

_FORGET = 0.98
_PRIOR = 8.0


class Odds:
    """What one session's rounds have shown so far.

    Args:
        acceptance: What to believe of α at first.
        coverage: And of the chance that the bonus of a broken chain is the next best token, the
            one after that, ….
    """

    def __init__(
        self, acceptance: float = 0.7, coverage: Sequence[float] = (0.45, 0.15, 0.08)
    ) -> None:
        self._accepted, self._tested = acceptance * _PRIOR, _PRIOR
        self._covered = [chance * _PRIOR for chance in coverage]
        self._broken = _PRIOR

    @property
    def acceptance(self) -> float:
        """α."""
        return self._accepted / self._tested

    def coverage(self, rank: int) -> float:
        """Chance that the bonus of a broken chain is the next best token of this rank."""
        return self._covered[rank] / self._broken if rank < len(self._covered) else 0.0

    def observe(self, chain: Sequence[Node], root: Node, ids: Sequence[int]) -> None:
        """Learns from a round.

        Args:
            chain: What was in flight.
            root: The node before it.
            ids: What was committed.
        """
        if not chain:
            return
        right = 0  # other methods may have gone on where the chain broke
        while right < min(len(chain), len(ids) - 1) and chain[right].token == ids[right]:
            right += 1
        self._accepted = _FORGET * self._accepted + right
        self._tested = _FORGET * self._tested + min(right + 1, len(chain))
        if right < len(chain):
            others = (chain[right - 1] if right else root).others
            self._broken = _FORGET * self._broken + 1
            self._covered = [
                _FORGET * covered + (rank < len(others) and others[rank] == ids[right])
                for rank, covered in enumerate(self._covered)
            ]


def outcomes(breaks: Sequence[Node], odds: Odds, fanout: int, most: int) -> list[tuple[Node, int]]:
    """The likeliest outcomes in which a chain in flight breaks.

    Args:
        breaks: The nodes after which it may: the one before the chain, and all of it but its end.
        odds: What is known of the session.
        fanout: Most bonus guesses for each accepted length.
        most: Most outcomes.

    Returns:
        For each the last accepted node and the bonus, likeliest first.
    """
    found: list[tuple[float, Node, int]] = []
    reached = 1.0
    for node in breaks:
        broken = reached * (1 - odds.acceptance)
        found.extend(
            (broken * odds.coverage(rank), node, token)
            for rank, token in enumerate(node.others[:fanout])
        )
        reached *= odds.acceptance
    found.sort(key=lambda outcome: -outcome[0])
    return [(node, token) for chance, node, token in found[:most] if chance >= _LEAST]
