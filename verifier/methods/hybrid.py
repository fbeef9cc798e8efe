"""Several methods for one sequence: their nodes in one tree, split by what each has brought.

Members propose in the order of their measured yield into the same tree, so a node that two of
them want is checked once. A member takes part while the tokens it alone brings pay for its rows and
for the time the others wait for it, and is tried again now and then where they do not.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass

from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.base import Outcome, Proposer
from verifier.sequence import Sequence

_FORGET = 0.97
_PRIOR_ROUNDS = 4.0
_PRIOR_NODES = 3.0
_PRIOR_TOKENS = 1.0
_TRY_EVERY = 16
_DOUBT = 0.6
"""Share of its cost that a member must bring to stay: a few rounds tell little."""


@dataclass
class _Record:
    """What one member has brought to one sequence, in the rounds it took part in."""

    rounds: float = _PRIOR_ROUNDS
    nodes: float = _PRIOR_ROUNDS * _PRIOR_NODES
    tokens: float = _PRIOR_ROUNDS * _PRIOR_TOKENS  # that no other member had proposed before it
    wait_s: float = 0.0
    resting: int = 0  # rounds in a row
    waited_s: float = 0.0  # in the round to come

    @property
    def value(self) -> float:
        """Tokens a node."""
        return self.tokens / self.nodes

    def observe(self, nodes: int, tokens: int) -> None:
        """Takes a round in which it took part."""
        self.rounds = _FORGET * self.rounds + 1
        self.nodes = _FORGET * self.nodes + nodes
        self.tokens = _FORGET * self.tokens + tokens
        self.wait_s = _FORGET * self.wait_s + self.waited_s
        self.waited_s = 0.0


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
        self._waits: dict[Sequence, tuple[float, list[str]]] = {}  # since when, for whom

    def open(self, sequence: Sequence) -> None:
        """Opens it with every member."""
        self._records[sequence] = {name: _Record() for name in self._members}
        for member in self._members.values():
            member.open(sequence)

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether all members are that do not rest."""
        records, late = self._records[sequence], []
        for name, member in self._members.items():
            if not records[name].resting and not member.ready(sequence, now):
                late.append(name)
        if late:
            self._waits.setdefault(sequence, (now, late))
            return False
        since, names = self._waits.pop(sequence, (now, []))
        for name in names:
            records[name].waited_s = now - since
        return True

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Lets the members add to the tree, the most useful first."""
        records = self._records[sequence]
        budget = min(budget, sequence.request.draft_tokens or budget)
        for name in sorted(records, key=lambda name: records[name].value, reverse=True):
            tree.owner = name
            left = budget - (len(tree) - 1)
            taking_part = records[name].resting % _TRY_EVERY == 0
            self._members[name].propose(sequence, tree, left if taking_part else 0)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Tells every member, notes what each brought, and settles who takes part next."""
        tree, records = outcome.tree, self._records[sequence]
        for name, record in records.items():
            if record.resting % _TRY_EVERY == 0:
                nodes = sum(1 for owner in tree.owners[1:] if owner == name)
                record.observe(nodes, _owned(outcome.accepted, tree, name))
        for name, record in records.items():
            others = [other for known, other in records.items() if known != name]
            record.resting = 0 if self._pays(record, others) else record.resting + 1
        for member in self._members.values():
            member.observe(sequence, outcome)

    def close(self, sequence: Sequence) -> None:
        """Closes it with every member."""
        del self._records[sequence]
        self._waits.pop(sequence, None)
        for member in self._members.values():
            member.close(sequence)

    def flush(self) -> float | None:
        """Nothing: the engine ends the members' steps."""
        return None

    def _pays(self, record: _Record, others: Ids[_Record]) -> bool:
        """Whether a member brings more in a round than the others would in the time it takes."""
        row_s = (self._cost.round_s(8) - self._cost.round_s(0)) / 8
        spent_s = (record.wait_s + record.nodes * row_s) / record.rounds
        without = 1.0 + sum(other.tokens / other.rounds for other in others if not other.resting)
        speed = self._cost.rate(without, self._cost.round_s(0))
        return record.tokens / record.rounds > _DOUBT * spent_s * speed


def _owned(nodes: Ids[int], tree: TokenTree, name: str) -> int:
    return sum(1 for node in nodes if tree.owners[node] == name)
