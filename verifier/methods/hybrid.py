"""Several methods for one sequence: their nodes in one tree, as long as each pays.

After each round the set of members is chosen that promises the most tokens a second, see `Arms`.
Those outside it propose nothing, nobody waits for them, and they are told so: a drafter that is not
wanted rests. The others propose into the same tree, the most useful first, so that a node that two
of them want is checked once and a small budget goes where it brings most.

Remote members hear of a round as soon as it ends; whether they are to draft was settled before.
What the others make of it is worked out while those are at work. Where it comes to nothing, the
others are not even asked for a few rounds. Where nothing is to come of a remote member, as where
there is no drafter, the others go on as if it were not there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from common.inbox import attempt
from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.arms import Arm, Arms, Standing
from verifier.methods.beliefs import Leaning
from verifier.proposer import Foreseeing, Outcome, Proposer, Remote
from verifier.sequence import Sequence

_NEWS = 0.3
"""Weight of a round in what is foreseen as a rule."""

_REST, _MOST_REST = 4, 16
"""Rounds without a look for each of several in a row at which remote members alone were best, and
at most: to look takes a twentieth of a round of a small model."""

_UNLIKE = 0.8
"""Where they bring so much less than at the last look, the next one is at once."""


@dataclass
class _Session:
    arm: Arm  # who takes part in the next round
    remote: Arm  # those of the remote ones that do in the round after
    foreseen: list[float]
    usual: list[float]  # the same as a rule
    leanings: list[Leaning]
    standing: Standing
    ended: Outcome | None = None  # of a round of which only the remote ones have heard
    late: Arm = 0  # who was waited for
    patience: float = math.inf  # how long, in seconds
    quiet: int = 0  # looks in a row that found the remote ones to do
    looked: bool = True  # for the round at hand
    rest: int = 0  # rounds without a look after one with
    rested: int = 0  # of them, those that are over
    leaning: float = 1.0  # of those that draft meanwhile, at the last one
    began: float | None = None  # when the last round ended
    tree: TokenTree | None = None  # what was proposed to
    asked: Arm = 0  # who could add to it
    proposed: float = 0.0  # when
    last: tuple[Arm, int] | None = None  # who took part in it, and its nodes

    @property
    def until(self) -> float:
        """When waiting ends, of the monotonic clock."""
        return math.inf if self.began is None else self.began + self.patience


@dataclass
class HybridProposer(Proposer):
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
        self._far = {at: each for at, each in enumerate(self._ordered) if isinstance(each, Remote)}
        self._others = [at for at in range(len(seers), len(self._names)) if at not in self._far]
        self._bits = {name: 1 << at for at, name in enumerate(self._names)}
        self._remote = sum(1 << at for at in self._far)
        self._arms = Arms(len(self._names), (1 << len(seers)) - 1, self._remote, self.cost)

    def open(self, sequence: Sequence) -> None:
        """Opens it with every member."""
        for member in self.members.values():
            member.open(sequence)
        count = len(self._names)
        everyone = (1 << count) - 1
        foreseen = [seer.foresee(sequence) for seer in self._seers]
        foreseen += [0.0] * (count - len(foreseen))
        leanings, standing = [Leaning() for _ in range(count)], Standing(self._remote)
        remote = self._arms.settle(foreseen, leanings, standing)
        self._sessions[sequence] = _Session(
            everyone, remote, foreseen, [*foreseen], leanings, standing
        )

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether all members are that take part, or waiting no longer pays."""
        session = self._sessions[sequence]
        self._work_out(sequence, session)
        late = self._late(sequence, session, now)
        session.late |= late
        return not late or now >= session.until

    def rests(self, sequence: Sequence) -> bool:
        """Never: it learns from each round by itself."""
        return False

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Lets the members add to the tree, the most useful first."""
        session = self._sessions[sequence]
        self._work_out(sequence, session)
        before, session.proposed = session.proposed, self.clock()
        if session.last is not None:
            self._arms.took(*session.last, session.arm, session.proposed - before)
        session.last = None
        session.tree, session.asked = tree, 0
        budget = min(budget, sequence.request.draft_tokens or budget)
        for at in self._arms.ranked(session.foreseen) if session.looked else self._far:
            tree.owner = self._names[at]
            left = budget - (len(tree) - 1) if session.arm >> at & 1 else 0
            session.asked |= (left > 0) << at
            self._ordered[at].propose(sequence, tree, left)

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Tells remote members; the others hear of it while those draft."""
        session, now = self._sessions[sequence], self.clock()
        for at in self._far:
            self._ordered[at].observe(sequence, _told(outcome, session.remote, at))
        session.began, session.last = now, None
        if session.looked or sequence.finished or not self._rests_on(session, outcome):
            session.ended = outcome
        if sequence.finished or not outcome.wanted:
            self._work_out(sequence, session)

    def close(self, sequence: Sequence) -> None:
        """Closes it with every member; a text cancelled in a rest does not teach its end."""
        self._sessions.pop(sequence, None)
        for member in self.members.values():
            attempt(partial(member.close, sequence))

    def deadline(self, since: float) -> float | None:
        """See `Waiting`: when waiting for a member no longer pays."""
        waiting = (
            session.until
            for sequence, session in self._sessions.items()
            if session.ended is None
            and session.until > since
            and self._late(sequence, session, since)
        )
        return min(waiting, default=None)

    def _late(self, sequence: Sequence, session: _Session, now: float) -> Arm:
        """Who takes part and is not ready."""
        return sum(
            1 << at
            for at, member in enumerate(self._ordered)
            if session.arm >> at & 1 and not member.ready(sequence, now)
        )

    def _work_out(self, sequence: Sequence, session: _Session) -> None:
        """Learns what each brought in the round that ended, if any, and who takes part next."""
        outcome, session.ended = session.ended, None
        if outcome is None:
            return
        if session.looked and outcome.tree is session.tree:
            self._learn(session, outcome)
        session.tree, session.late = None, 0
        for member in self._ordered[: len(self._seers)]:
            member.observe(sequence, outcome)
        session.looked = session.rested == session.rest
        if not outcome.wanted:  # heads have nothing to go on from in the next round
            session.arm &= self._remote | self._arms.foreseeing
        elif session.looked and not sequence.finished:
            self._choose(sequence, session)
        for at in self._others:
            self._ordered[at].observe(sequence, _told(outcome, session.arm, at))

    def _rests_on(self, session: _Session, outcome: Outcome) -> bool:
        """Whether the round after one without a look is another."""
        session.rested, session.late = session.rested + 1, 0
        usual = outcome.wanted and outcome.tree is session.tree and len(outcome.tree) > 1
        if usual:
            came, leanings = len(outcome.accepted), session.leanings
            leaning = self._arms.follow(session.remote, session.usual, leanings, came)
            usual = leaning >= _UNLIKE * session.leaning
        if not usual:
            session.rest = session.rested
        return session.rested < session.rest

    def _choose(self, sequence: Sequence, session: _Session) -> None:
        """Settles who takes part in the next round, and of the remote ones in the one after."""
        for at, seer in enumerate(self._seers):
            session.foreseen[at] = seer.foresee(sequence)
            session.usual[at] += _NEWS * (session.foreseen[at] - session.usual[at])
        foreseen, leanings = session.foreseen, session.leanings
        idle = sum(1 << at for at, member in self._far.items() if not member.asked(sequence))
        session.arm = self._arms.choose(
            foreseen, leanings, session.arm & ~idle, session.remote & ~idle, session.standing
        )
        session.remote = self._arms.settle(
            session.usual, leanings, session.standing, 1 + session.rested
        )
        session.rested = 0
        session.patience = self._arms.patience_s(session.arm, foreseen, leanings)
        lasting = session.arm == session.remote == session.standing.remote != 0
        session.quiet = session.quiet + 1 if lasting and not session.standing.missed else 0
        session.rest = min(_REST * session.quiet, _MOST_REST)
        session.leaning = self._arms.factor(session.remote, leanings)

    def _learn(self, session: _Session, outcome: Outcome) -> None:
        """Takes a round into account.

        A drafter that could not propose yet, as it still computes the prompt, took no part in it.
        A member that works here did though nothing seemed worth checking: to find that takes time.
        """
        tree = outcome.tree
        wanted = tree.backers(self._bits)[1:]
        proposed = 0
        for backers in wanted:
            proposed |= backers
        arm = session.arm & (proposed | session.late | session.asked & ~self._remote)
        self._arms.learn(
            arm,
            session.foreseen,
            session.leanings,
            [wanted[node - 1] for node in outcome.accepted],
            wanted,
            session.late & ~proposed,
        )
        session.last = arm, len(tree) - 1


def _told(outcome: Outcome, arm: Arm, member: int) -> Outcome:
    """What a member hears of a round, before one in which a set takes part."""
    return outcome if arm >> member & 1 else outcome._replace(wanted=False)
