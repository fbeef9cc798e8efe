"""What a speculation method is to the engine.

A proposer yields token trees below the last committed token and learns what became of them.
All calls come from the engine's thread. A new method is one file here and one line in the
registry of `verifier.methods`.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Protocol

from common.model.tree import TokenTree
from verifier.sequence import Sequence


class Proposer(Protocol):
    """Drafts for the sequences of one method."""

    def open(self, sequence: Sequence) -> None:
        """A sequence joins; its prompt is committed, nothing is computed yet."""

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether to run the sequence now rather than wait for its draft.

        Args:
            sequence: A decoding sequence.
            now: Seconds, of the monotonic clock.
        """

    def propose(self, sequence: Sequence, budget: int) -> TokenTree:
        """The tree to check next.

        Args:
            sequence: A decoding sequence that is ready.
            budget: Most nodes beside the root.
        """

    def observe(
        self, sequence: Sequence, tree: TokenTree, accepted: Ids[int], ids: Ids[int]
    ) -> None:
        """A round ended and its tokens are committed.

        Args:
            sequence: Whose.
            tree: What was checked.
            accepted: Nodes that were right.
            ids: The tokens committed: those of the accepted nodes, and one more.
        """

    def close(self, sequence: Sequence) -> None:
        """A sequence leaves."""

    def flush(self) -> float | None:
        """Ends a step.

        Returns:
            When to look again for a sequence that now waits, in seconds of the monotonic
            clock; None where no clock is involved.
        """
