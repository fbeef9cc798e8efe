"""A method that leaves off drafting where sequences are faster without it.

Of several `Gate` says where, of one alone `Solo`. The method goes on learning of the text, so that
it can be taken up again.
"""

from __future__ import annotations

import time
from functools import partial

from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.gates.solo import Solo
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence


class GatedProposer(Proposer):
    """Another proposer, and when to ask it.

    Args:
        inner: Drafts.
        crowd: All sequences of the engine.
        cost: Of the engine's steps.
        remote: Whether drafts come from elsewhere, a while after they are asked for at first.
    """

    def __init__(
        self, inner: Proposer, crowd: Crowd, cost: StepCost, *, remote: bool = False
    ) -> None:
        self._remote = remote
        self._inner, self._gate = inner, Gate(crowd, first=True)
        self._crowd, self._cost = crowd, cost
        self._solos: dict[Sequence, Solo] = {}
        self._asked: set[Sequence] = set()  # in the round that runs
        self._now = 0.0

    def open(self, sequence: Sequence) -> None:
        """Opens it with the other, which learns of the text even while it is not asked."""
        self._inner.open(sequence)
        self._solos[sequence] = Solo(partial(self._cost.step_s, 1))

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
            self._asked.add(sequence)
            nodes = len(tree)
            self._inner.propose(sequence, tree, budget)
            if len(tree) > nodes or not self._remote:
                self._gate.joined()

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Tells the other, and whether it will be asked; not at once after a rest, from which there
        is no state to draft from."""
        several, self._now = outcome.output is None, time.monotonic()
        self._solos[sequence].ended(
            len(outcome.ids),
            self._now,
            drafted=sequence in self._asked and not several,
            alone=self._crowd.sequences <= 1,
            passes=len(outcome.ids) if several else 1,
        )
        self._asked.discard(sequence)
        if several or not self._drafting(sequence):
            outcome = outcome._replace(wanted=False)
        self._inner.observe(sequence, outcome)

    def close(self, sequence: Sequence) -> None:
        """Closes it with the other."""
        self._solos.pop(sequence, None)
        if not self._solos:
            self._gate.left()
        self._asked.discard(sequence)
        self._inner.close(sequence)

    def _drafting(self, sequence: Sequence) -> bool:
        """Whether drafts pay; who asks for a length gets them anyway."""
        if sequence.request.draft_tokens > 0:
            return True
        pays = self._gate.drafting(len(self._solos), self._now)
        return pays and (self._crowd.sequences > 1 or self._solos[sequence].drafting)
