"""A method that leaves off drafting where several sequences are faster without it.

`Gate` says where. The method goes on learning of the text, so that it can be taken up again.
"""

from __future__ import annotations

from common.model.tree import TokenTree
from verifier.methods.base import Outcome, Proposer
from verifier.methods.crowd import Crowd
from verifier.methods.gate import Gate
from verifier.sequence import Sequence


class GatedProposer:
    """Another proposer, and when to ask it.

    Args:
        inner: Drafts.
        crowd: All sequences of the engine.
    """

    def __init__(self, inner: Proposer, crowd: Crowd) -> None:
        self._inner, self._gate = inner, Gate(crowd, first=True)
        self._sequences, self._now = 0, 0.0

    def open(self, sequence: Sequence) -> None:
        """Opens it with the other, which learns of the text even while it is not asked."""
        self._inner.open(sequence)
        self._sequences += 1

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether the other is, where it is asked."""
        self._now = now
        return not self._drafting(sequence) or self._inner.ready(sequence, now)

    def rests(self, sequence: Sequence) -> bool:
        """Whether the other is not asked."""
        return not self._drafting(sequence)

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds what the other does, where it is asked."""
        if self._drafting(sequence):
            nodes = len(tree)
            self._inner.propose(sequence, tree, budget)
            if len(tree) > nodes:
                self._gate.drafted()

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Tells the other, and whether it will be asked; not at once after a rest, from which there
        is no state to draft from."""
        if outcome.output is None or not self._drafting(sequence):
            outcome = outcome._replace(wanted=False)
        self._inner.observe(sequence, outcome)

    def close(self, sequence: Sequence) -> None:
        """Closes it with the other."""
        self._inner.close(sequence)
        self._sequences -= 1

    def _drafting(self, sequence: Sequence) -> bool:
        """Whether drafts pay; who asks for a length gets them anyway."""
        asked = sequence.request.draft_tokens > 0
        return asked or self._gate.drafting(self._sequences, self._now)
