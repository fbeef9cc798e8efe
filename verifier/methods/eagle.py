"""Drafts from a head that goes on from the target's states by itself (EAGLE-3, Li et al. 2025).

Every pass shows the head the target's states at the rows that were committed, and at those of
prompts; their keys go into the head's layer of the cache. From the last of them it drafts, for all
sequences that ended a round in one batch. The tree that is checked is grown of its guesses in the
order of their joint chances, as large as pays.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from common.model.eagle.head import MOST_DEPTH, Behind, EagleHead
from common.model.kv_cache import ZERO_SLOT
from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.eagle_draft import Guess, HeadDrafts, Text
from verifier.methods.head_keys import HeadKeys, TextMarks
from verifier.methods.trust import Trials, Trusts
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence

_MOST_SHOWN = 64
"""Rows of a sequence until their keys are written without a draft."""


@dataclass
class _Session:
    trusts: Trusts
    marks: TextMarks
    position: int = 0  # of the first row that it was shown and whose key is not written
    shown: list[Tensor] = field(default_factory=list)  # states of rows from there on
    wanted: bool = False  # whether to draft behind the last of them
    guesses: Seq[Guess] | None = None
    tree: TokenTree | None = None  # what is being checked
    nodes: Mapping[int, float] = field(default_factory=dict)  # its guesses: chance given the parent
    trials: Trials = field(default_factory=Trials)

    @property
    def end(self) -> int:
        """Position behind the last row that it was shown."""
        return self.position + sum(map(len, self.shown))

    def show(self, position: int, states: Tensor) -> None:
        """Shows it rows, which follow those that it was shown."""
        self.position = self.position if self.shown else position
        whole = states.untyped_storage().nbytes() == states.nbytes
        self.shown.append(states if whole else states.clone())  # a view would keep all of its pass


class EagleProposer(Proposer):
    """Drafts with a head.

    Args:
        head: Made for the engine's model.
        cost: Of the engine's steps.
        most_nodes: Largest tree.
    """

    def __init__(self, head: EagleHead, cost: StepCost, most_nodes: int) -> None:
        self._head, self._cost, self._most_nodes = head, cost, most_nodes
        self._drafts = HeadDrafts(head, cost)
        self._keys = HeadKeys(head.slots)
        self._marks = WeakKeyDictionary[Sequence, TextMarks]()  # of all texts that it reads
        self._sessions: dict[Sequence, _Session] = {}
        self._trusts = Trusts(MOST_DEPTH)

    def open(self, sequence: Sequence) -> None:
        """Starts from what all sequences so far have taught."""
        trusts = Trusts(MOST_DEPTH, self._trusts)
        self._sessions[sequence] = _Session(trusts, self._marked(sequence))

    def reads(self, sequence: Sequence, position: int) -> bool:
        """Of texts that others draft for it reads the prompt: another may begin with the same."""
        return sequence in self._sessions or position < sequence.prompt_len - 1

    def read(self, sequence: Sequence, position: int, states: Tensor) -> None:
        """See `Reader`. Keys are written with the next draft, or once there are many."""
        rows = min(len(states), len(sequence.ids) - 1 - position)  # each wants the token after it
        if rows < 1:
            return
        session = self._sessions.get(sequence)
        drafts = session is not None
        if session is None:
            session = _Session(self._trusts, self._marked(sequence))
        if session.shown and session.end != position:
            self._write(sequence, session)
        session.show(position, states[:rows])
        if not drafts or session.end - session.position > _MOST_SHOWN:
            self._write(sequence, session)
            session.show(position + rows - 1, states[rows - 1 : rows])  # to be drafted behind

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

    def _marked(self, sequence: Sequence) -> TextMarks:
        """A text's marks, which chunk after chunk of its prompt adds to."""
        marks = self._marks.get(sequence)
        if marks is None:
            marks = TextMarks(sequence.prompt_len + sequence.request.max_tokens)
            self._marks[sequence] = marks
        return marks

    def _most(self, sequence: Sequence) -> int:
        return sequence.request.draft_tokens or self._most_nodes

    def _guess(self) -> None:
        """Drafts for every sequence that ended a round."""
        sessions, texts, behind = [], [], []
        for sequence, session in self._sessions.items():
            if not session.wanted or session.end < len(sequence.ids) - 1:
                continue
            session.wanted = False
            rows = self._behind(sequence, session)
            if rows is not None:
                most = min(self._most(sequence), sequence.room - 1)
                sessions.append(session)
                texts.append(Text(sequence, session.trusts.factors, most))
                behind.append(rows)
        if not texts:
            return
        for session, rows in zip(sessions, behind, strict=True):
            self._wrote(session, rows)  # they are written first, whatever comes of the draft
        for session, guesses in zip(sessions, self._drafts.draft(texts, behind), strict=True):
            session.guesses = guesses

    def _write(self, sequence: Sequence, session: _Session) -> None:
        """Writes the keys of what a text was shown, without a draft."""
        behind = self._behind(sequence, session)
        if behind is not None:
            self._head.write([behind])
            self._wrote(session, behind)

    def _behind(self, sequence: Sequence, session: _Session) -> Behind | None:
        """What a text was shown; nothing where it gave its cache back meanwhile."""
        position, end, shown = session.position, session.end, session.shown
        session.shown = []
        slots = sequence.lease.slots
        if not shown or end > len(slots):
            return None
        session.marks.extend(sequence.ids)
        there = self._keys.there(slots[:position], session.marks.of(0, position))
        if not there.all():
            slots = slots[:end].copy()
            slots[:position][~there] = ZERO_SLOT
        states = shown[0] if len(shown) == 1 else torch.cat(shown)
        return Behind(states, sequence.ids[position + 1 : end + 1], position, slots)

    def _wrote(self, session: _Session, behind: Behind) -> None:
        span = slice(behind.position, behind.end)
        self._keys.wrote(behind.slots[span], session.marks.of(behind.position, behind.end))

    def _grow(
        self, session: _Session, guesses: Seq[Guess], tree: TokenTree, budget: int
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
