"""No speculation: one token a pass."""

from __future__ import annotations

from common.model.tree import TokenTree
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence


class PlainProposer(Proposer):
    """Proposes nothing."""

    def open(self, sequence: Sequence) -> None:
        """Nothing to prepare."""

    def rests(self, sequence: Sequence) -> bool:
        """Always."""
        return True

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """The root alone."""

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Nothing to learn."""

    def close(self, sequence: Sequence) -> None:
        """Nothing to free."""
