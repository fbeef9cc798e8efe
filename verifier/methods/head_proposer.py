"""What proposers share whose drafts a head makes that goes on from the target's states.

For all sequences that ended a round it drafts in one batch. The tree that is checked is grown of
its guesses in the order of their joint chances, as large as pays.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from common.model.drafting_head import MOST_DEPTH, DraftingHead, Known
from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.head_drafts import Guess, HeadDrafts, Text
from verifier.methods.trust import Trials, Trusts
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence


@dataclass
class HeadSession:
    """A text that is drafted for."""

    trusts: Trusts
    """How far the head can be trusted."""
    wanted: bool = False
    """Whether to draft behind what is known of it."""
    guesses: Seq[Guess] | None = None
    """Of the next tokens."""
    tree: TokenTree | None = None
    """What is being checked."""
    nodes: Mapping[int, float] = field(default_factory=dict)
    """Its guesses: their chances given the parent."""
    trials: Trials = field(default_factory=Trials)
    """How many of them are checked."""


Session = TypeVar("Session", bound=HeadSession)


class HeadProposer(Proposer, Generic[Session, Known]):
    """Drafts with a head.

    Args:
        head: Made for the engine's model.
        cost: Of the engine's steps.
        most_nodes: Largest tree.
    """

    def __init__(self, head: DraftingHead[Known], cost: StepCost, most_nodes: int) -> None:
        self._cost, self._most_nodes = cost, most_nodes
        self._drafts = HeadDrafts(head, cost)
        self._sessions: dict[Sequence, Session] = {}
        self._trusts = Trusts(MOST_DEPTH)

    @abstractmethod
    def _begun(self, sequence: Sequence, trusts: Trusts) -> Session:
        """What is known of a text that joins."""

    @abstractmethod
    def _known(self, sequence: Sequence, session: Session) -> Known | None:
        """What the head has to know of a text; None where it is not to be drafted behind now."""

    def _begins(self, session: Session, known: Known) -> None:
        """Hears that the head is about to draft behind a text."""

    def open(self, sequence: Sequence) -> None:
        """Starts from what all sequences so far have taught."""
        self._sessions[sequence] = self._begun(sequence, Trusts(MOST_DEPTH, self._trusts))

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds the guesses after the last round's states."""
        session = self._sessions[sequence]
        budget = min(budget, self._most(sequence))
        if budget <= 0:
            return
        if session.wanted:  # the first that proposes drafts for all
            self._guess()
        if session.guesses is not None:
            session.tree = tree
            session.nodes = self._grow(session, session.guesses, tree, budget)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Learns how far the head can be trusted."""
        session = self._sessions[sequence]
        if outcome.tree is session.tree:
            session.trusts.learn(outcome, session.nodes)
        session.tree, session.nodes, session.guesses = None, {}, None
        session.wanted = outcome.wanted and not sequence.finished

    def close(self, sequence: Sequence) -> None:
        """Forgets it."""
        self._sessions.pop(sequence, None)

    def _most(self, sequence: Sequence) -> int:
        return sequence.request.draft_tokens or self._most_nodes

    def _guess(self) -> None:
        """Drafts for every sequence that ended a round."""
        sessions, texts, known = [], [], []
        for sequence, session in self._sessions.items():
            if not session.wanted:
                continue
            found = self._known(sequence, session)
            if found is not None:
                session.wanted = False
                most = min(self._most(sequence), sequence.room - 1)
                sessions.append(session)
                texts.append(Text(sequence, session.trusts.factors, most))
                known.append(found)
        if not texts:
            return
        for session, each in zip(sessions, known, strict=True):
            self._begins(session, each)
        for session, guesses in zip(sessions, self._drafts.draft(texts, known), strict=True):
            session.guesses = guesses

    def _grow(
        self, session: Session, guesses: Seq[Guess], tree: TokenTree, budget: int
    ) -> dict[int, float]:
        """Adds guesses in the order of joint confidence, as many as make the step worth most."""
        worth = self._cost.worth()
        order = sorted(range(len(guesses)), key=lambda number: -guesses[number].joint)[:budget]
        for number in order:
            worth.add(guesses[number].joint)
            if worth.settled:
                break
        best = session.trials.checked(worth.best)
        placed, chances = {-1: 0}, {}
        for number in order[:best]:  # parents first: they are as likely at least, and older
            guess = guesses[number]
            node = placed[number] = tree.add(placed[guess.parent], guess.token)
            chances[node] = guess.said
        return chances
