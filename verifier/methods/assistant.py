"""Drafts from an assistant, which reads the target's keys (Gemma 4's multi-token prediction).

It goes on from the one state from which a round's last token was chosen, and sees what the cache
holds of the text: there is nothing to show it of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from common.model.assistant.head import Ending
from verifier.methods.head_proposer import HeadProposer, HeadSession
from verifier.methods.trust import Trusts
from verifier.proposer import Outcome
from verifier.sequence import Sequence


@dataclass
class _Session(HeadSession):
    state: Tensor | None = None  # to draft behind, [t]
    at: int = 0  # position of the token that was chosen from it


class AssistantProposer(HeadProposer[_Session, Ending]):
    """Drafts with an assistant; see `HeadProposer`."""

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Keeps the state to draft behind, too."""
        super().observe(sequence, outcome)
        session = self._sessions[sequence]
        session.state = outcome.state.clone() if session.wanted else None  # not all of its pass
        session.at = len(sequence.ids) - 1

    def _begun(self, sequence: Sequence, trusts: Trusts) -> _Session:
        return _Session(trusts)

    def _known(self, sequence: Sequence, session: _Session) -> Ending | None:
        """Nothing of a text that went on without it, or gave its cache back."""
        state, session.state = session.state, None
        end, slots = len(sequence.ids) - 1, sequence.lease.slots
        if state is None or session.at != end or end > len(slots):
            return None
        return Ending(state, sequence.ids[-1], slots[:end])
