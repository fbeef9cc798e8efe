"""No speculation: one token a pass."""

from __future__ import annotations

from collections.abc import Sequence as Ids

from common.model.tree import TokenTree
from verifier.sequence import Sequence


class PlainProposer:
    """Proposes nothing."""

    def open(self, sequence: Sequence) -> None:
        """Nothing to prepare."""

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Always."""
        return True

    def propose(self, sequence: Sequence, budget: int) -> TokenTree:
        """The root alone."""
        return TokenTree(sequence.ids[-1])

    def observe(
        self, sequence: Sequence, tree: TokenTree, accepted: Ids[int], ids: Ids[int]
    ) -> None:
        """Nothing to learn."""

    def close(self, sequence: Sequence) -> None:
        """Nothing to free."""

    def flush(self) -> float | None:
        """Nothing to send."""
        return None
