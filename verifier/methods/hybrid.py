"""Several methods for one sequence: their nodes in one tree, as long as each pays.

After each round the set of members is chosen that promises the most tokens a second, see `Arms`.
Those outside it propose nothing, nobody waits for them, and they are told so: a drafter that is not
wanted rests. The others propose into the same tree, the most useful first, so that a node that two
of them want is checked once and a small budget goes where it brings most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.arms import Arm, Arms, Leaning
from verifier.methods.base import Foreseeing, Outcome, Proposer, Remote
from verifier.sequence import Sequence

_NEWS = 0.3
"""Weight of a round in what is foreseen as a rule."""


@dataclass
class _Session:
    arm: Arm  # who takes part in the next round
    foreseen: list[float]
    leanings: list[Leaning]
    usual: list[float] | None = None  # what is foreseen as a rule
    late: Arm = 0  # who was waited for
    until: float = math.inf  # how long, of the monotonic clock
    began: float | None = None  # when the last round ended
    before: Arm = 0  # who took part in it
    tree: TokenTree | None = None  # what was proposed to


@dataclass
class HybridProposer:
    """Drafts with several methods at once.

    Args:
        members: By method, at least two.
        cost: Of the engine's steps.
        clock: Seconds, of the monotonic clock.
    """

    members: dict[str, Proposer]
    cost: StepCost
    clock: Callable[[], float] = time.monotonic
    _sessions: dict[Sequence, _Session] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seers = {name: each for name, each in self.members.items() if isinstance(each, Foreseeing)}
        self._seers = list(seers.values())
        self._names = [*seers, *(name for name in self.members if name not in seers)]
        self._ordered = [self.members[name] for name in self._names]  # by their bit
        remote = [isinstance(member, Remote) for member in self._ordered]
        self._arms = Arms(
            len(self._names),
            (1 << len(seers)) - 1,
            sum(1 << at for at, is_remote in enumerate(remote) if is_remote),
            self.cost,
        )

    def open(self, sequence: Sequence) -> None:
        """Opens it with every member."""
        for member in self.members.values():
            member.open(sequence)
        count = len(self._names)
        self._sessions[sequence] = _Session(
            (1 << count) - 1, [0.0] * count, [Leaning() for _ in range(count)]
        )

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether all members are that take part, or waiting no longer pays."""
        session = self._sessions[sequence]
        late = self._late(sequence, session, now)
        session.late |= late
        return not late or now >= session.until

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Lets the members add to the tree, the most useful first."""
        session = self._sessions[sequence]
        session.tree = tree
        budget = min(budget, sequence.request.draft_tokens or budget)
        for at in self._arms.ranked(session.foreseen):
            tree.owner = self._names[at]
            left = budget - (len(tree) - 1) if session.arm >> at & 1 else 0
            self._ordered[at].propose(sequence, tree, left)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Learns what each brought, and settles who takes part next."""
        session, now = self._sessions[sequence], self.clock()
        if outcome.tree is session.tree:
            self._learn(session, outcome, now)
        session.tree, session.late, session.began = None, 0, now
        for member in self._ordered[: len(self._seers)]:
            member.observe(sequence, outcome)
        if not sequence.finished:
            for at, seer in enumerate(self._seers):
                session.foreseen[at] = seer.foresee(sequence)
            session.usual = _faded(session.usual, session.foreseen)
            foreseen, leanings = session.foreseen, session.leanings
            session.arm = self._arms.choose(foreseen, session.usual, leanings, session.arm)
            session.until = now + self._arms.patience_s(session.arm, foreseen, leanings)
        resting = replace(outcome, wanted=False)
        for at, member in enumerate(self._ordered[len(self._seers) :], start=len(self._seers)):
            member.observe(sequence, outcome if session.arm >> at & 1 else resting)

    def close(self, sequence: Sequence) -> None:
        """Closes it with every member."""
        del self._sessions[sequence]
        for member in self.members.values():
            member.close(sequence)

    def flush(self) -> float | None:
        """Returns when waiting for a member no longer pays; the engine ends the members' steps."""
        now = self.clock()
        waiting = (
            session.until
            for sequence, session in self._sessions.items()
            if session.until > now and self._late(sequence, session, now)
        )
        return min(waiting, default=None)

    def _late(self, sequence: Sequence, session: _Session, now: float) -> Arm:
        """Who takes part and is not ready."""
        return sum(
            1 << at
            for at, member in enumerate(self._ordered)
            if session.arm >> at & 1 and not member.ready(sequence, now)
        )

    def _learn(self, session: _Session, outcome: Outcome, now: float) -> None:
        """Takes a round into account.

        One that could not propose yet, such as a drafter that still computes the prompt, took no
        part in it.
        """
        tree = outcome.tree
        wanted = [self._backers(tree, node) for node in range(1, len(tree))]
        proposed = 0
        for backers in wanted:
            proposed |= backers
        arm = session.arm & (proposed | session.late | self._arms.foreseeing)
        self._arms.learn(
            arm,
            session.foreseen,
            session.leanings,
            [wanted[node - 1] for node in outcome.accepted],
            wanted,
            session.late & ~proposed,
        )
        if session.began is not None:
            seconds = now - session.began
            self._arms.took(arm, session.before, session.foreseen, len(tree) - 1, seconds)
        session.before = arm

    def _backers(self, tree: TokenTree, node: int) -> Arm:
        return sum(1 << at for at, name in enumerate(self._names) if tree.wanted(node, name))


def _faded(before: list[float] | None, foreseen: list[float]) -> list[float]:
    """What is foreseen as a rule, after one more round."""
    if before is None:
        return [*foreseen]
    return [old + _NEWS * (new - old) for old, new in zip(before, foreseen, strict=True)]
