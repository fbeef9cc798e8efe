"""Drafts from a head that goes on from the target's states by itself: EAGLE-3 (Li et al. 2025), or
multi-token prediction (DeepSeek-V3, 2024).

Every pass shows the head the target's states at the rows that were committed, and at those of
prompts; their keys go into the head's layer of the cache. From the last of them it drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from common.model.keyed_head import Behind, KeyedHead
from common.model.kv_cache import ZERO_SLOT
from verifier.cost import StepCost
from verifier.methods.head_keys import HeadKeys, TextMarks
from verifier.methods.head_proposer import HeadProposer, HeadSession
from verifier.methods.trust import Trusts
from verifier.sequence import Sequence

_MOST_SHOWN = 64
"""Rows of a sequence until their keys are written without a draft."""


@dataclass
class _Session(HeadSession):
    marks: TextMarks = field(kw_only=True)
    position: int = 0  # of the first row that it was shown and whose key is not written
    end: int = 0  # behind the last that it was shown
    shown: list[Tensor] = field(default_factory=list)  # states of rows from there on

    def show(self, position: int, states: Tensor) -> None:
        """Shows it rows, which follow those that it was shown."""
        self.position = self.position if self.shown else position
        self.end = position + len(states)
        whole = states.untyped_storage().nbytes() == states.nbytes
        self.shown.append(states if whole else states.clone())  # a view would keep all of its pass


class EagleProposer(HeadProposer[_Session, Behind]):
    """Drafts with a head.

    Args:
        head: Made for the engine's model.
        cost: Of the engine's steps.
        most_nodes: Largest tree.
    """

    def __init__(self, head: KeyedHead, cost: StepCost, most_nodes: int) -> None:
        super().__init__(head, cost, most_nodes)
        self._head = head
        self._keys = HeadKeys(head.slots)
        self._marks = WeakKeyDictionary[Sequence, TextMarks]()  # of all texts that it reads

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
            session = self._begun(sequence, self._trusts)
        if session.shown and session.end != position:
            self._write(sequence, session)
        session.show(position, states[:rows])
        if not drafts or session.end - session.position > _MOST_SHOWN:
            self._write(sequence, session)
            session.show(position + rows - 1, states[rows - 1 : rows])  # to be drafted behind

    def _begun(self, sequence: Sequence, trusts: Trusts) -> _Session:
        """With the text's marks, which chunk after chunk of its prompt adds to."""
        marks = self._marks.get(sequence)
        if marks is None:
            marks = TextMarks(sequence.prompt_len + sequence.request.max_tokens)
            self._marks[sequence] = marks
        return _Session(trusts, marks=marks)

    def _known(self, sequence: Sequence, session: _Session) -> Behind | None:
        if session.end < len(sequence.ids) - 1:
            return None
        return self._behind(sequence, session)

    def _begins(self, session: _Session, known: Behind) -> None:
        """Its keys are written first, whatever comes of the draft."""
        self._wrote(session, known)

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
