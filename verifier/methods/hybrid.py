"""Several methods for one sequence: their nodes in one tree, split by what each has brought.

Members propose in the order of their measured yield into the same tree, so a node that two of
them want is checked once. A member is given nodes while the tokens it alone brought pay for its
rows, and is tried again now and then where they do not.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.base import Outcome, Proposer
from verifier.sequence import Sequence

_FORGET = 0.98
_PRIOR_NODES = 16.0
_PRIOR_YIELD = 0.5
_TRY_EVERY = 16


@dataclass
class _Record:
    """What one member has brought to one sequence."""

    nodes: float = _PRIOR_NODES
    tokens: float = _PRIOR_NODES * _PRIOR_YIELD
    resting: int = 0

    @property
    def value(self) -> float:
        """Tokens a node."""
        return self.tokens / self.nodes

    def observe(self, nodes: int, tokens: int) -> None:
        if nodes:
            self.nodes = _FORGET * self.nodes + nodes
            self.tokens = _FORGET * self.tokens + tokens


class HybridProposer:
    """Drafts with several methods at once.

    Args:
        members: By method, at least two.
        cost: Of the engine's steps.
    """

    def __init__(self, members: dict[str, Proposer], cost: StepCost) -> None:
        self._members = members
        self._cost = cost
        self._records: dict[Sequence, dict[str, _Record]] = {}

    def open(self, sequence: Sequence) -> None:
        """Opens it with every member."""
        self._records[sequence] = {name: _Record() for name in self._members}
        for member in self._members.values():
            member.open(sequence)

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether all members are that do not rest."""
        records = self._records[sequence]
        return all(
            member.ready(sequence, now)
            for name, member in self._members.items()
            if not records[name].resting
        )

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Lets the members add to the tree, the most useful first."""
        records = self._records[sequence]
        budget = min(budget, sequence.request.draft_tokens or budget)
        for name in sorted(records, key=lambda name: records[name].value, reverse=True):
            tree.owner = name
            left = budget - (len(tree) - 1)
            self._members[name].propose(sequence, tree, left if self._worth(records[name]) else 0)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Tells every member, and notes what each brought."""
        tree = outcome.tree
        for name, record in self._records[sequence].items():
            nodes = sum(1 for owner in tree.owners[1:] if owner == name)
            record.observe(nodes, _owned(outcome.accepted, tree, name))
        for member in self._members.values():
            member.observe(sequence, outcome)

    def close(self, sequence: Sequence) -> None:
        """Closes it with every member."""
        del self._records[sequence]
        for member in self._members.values():
            member.close(sequence)

    def flush(self) -> float | None:
        """Nothing: the engine ends the members' steps."""
        return None

    def _worth(self, record: _Record) -> bool:
        """Whether a member's next nodes pay for their rows."""
        more = self._cost.round_s(8) - self._cost.round_s(0)
        pays = record.value > more / 8 * self._cost.rate(1.0, self._cost.round_s(0))
        record.resting = 0 if pays else record.resting + 1
        return pays or record.resting % _TRY_EVERY == 0


def _owned(nodes: Ids[int], tree: TokenTree, name: str) -> int:
    return sum(1 for node in nodes if tree.owners[node] == name)
