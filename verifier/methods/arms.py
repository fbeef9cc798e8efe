"""Which of several members to draft with: what each set of them has brought, and how long it took.

A round tells about the set that took part and about every smaller one, since a token would have
come all the same as long as one member of the smaller set had wanted it. What is learned holds for
a deployment, so that a short text starts from what earlier ones have taught. It is kept apart by
how many tokens those members expect that know it beforehand, as look-ups do: that decides whether
others are worth waiting for. How a text differs from the rest is a factor of its own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from verifier.cost import StepCost
from verifier.methods.beliefs import Leaning, Mean

Arm = int
"""A set of members, a bit each."""

_BOUNDS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.5, 4.0)
"""Foreseen tokens at which the next kind of round begins."""

_PRIOR_ALONE = 1.5
_PRIOR_BESIDE = 0.7
"""Tokens that members are thought to bring before anything is known of them."""

_FAR = 4.0
"""A round that took so many times what is usual counts as if it had taken that: it may have waited
for something else."""

_STAY = 1.05
"""Favours the present set: which one is best is not known so exactly."""

_CHANGE = 1.0
"""What it takes to send a remote member away or for it, in rounds: those before it drafts ahead."""

_SETTLE_EVERY = 4
"""Rounds of a text between two looks at whether it should."""

_PATIENCE = 2.0
"""How long to wait for a member, over the time in which the others make what it brings."""

_TRY_EVERY = 192
_TRIAL_ROUNDS = 4
"""Rounds that were chosen for, of each text, between two trials of the member that was left out
longest, and those that it then has, of all texts: the first pays for the rest before it, and what
texts pay once a step, as for heads, shows only where all do."""


@dataclass
class Standing:
    """Where a text stands: which remote members it drafts with, for the time being."""

    remote: Arm
    """They."""
    missed: float = math.inf
    """What others would have gained since they would have gained anything, in rounds."""
    rounds: int = _SETTLE_EVERY
    """Since it was looked at."""
    chosen: int = -1
    """The round that was chosen for last."""


class Arms:
    """What sets of members have been worth, over all sequences.

    Args:
        members: How many there are.
        foreseeing: Those that know beforehand what they expect.
        remote: Those that draft elsewhere, and ahead.
        cost: Of the engine's steps.
    """

    def __init__(self, members: int, foreseeing: Arm, remote: Arm, cost: StepCost) -> None:
        self._members, self._remote, self._cost = members, remote, cost
        self.foreseeing = foreseeing
        """Members that know beforehand what they expect."""
        # What comes of the tokens that the best of those who foresee expects: less where it was the
        # best because it expected too much. By those of a set who foresee.
        self._kept: dict[tuple[Arm, int], Leaning] = {}
        self._more: dict[tuple[Arm, int], Mean] = {}  # tokens of the others beyond these
        self._nodes: dict[tuple[Arm, int], Mean] = {}
        self._came: dict[tuple[Arm, int], Mean] = {}  # share of rounds in which all were in time
        self._slow: dict[Arm, Mean] = {}  # seconds over those of the table
        self._tried, self._trials = 0, 0  # who has a trial, and how many were begun
        self._last = [0] * members  # the round each took part in
        self._round = 0  # the one at hand, in which each text chooses once

    def settle(
        self, usual: Seq[float], leanings: Seq[Leaning], standing: Standing, rounds: int = 1
    ) -> Arm:
        """Which remote members are to draft after the next round.

        A member that works here costs nothing to leave out for a round. A remote one does, so that
        is settled by what the others expect as a rule, and beforehand: it is told at once. It
        changes where as much was missed meanwhile as changing takes: whatever comes then, no more
        than twice what would have been best is lost.

        Args:
            usual: Tokens each member expects to bring, over the last rounds; 0 of those that cannot
                say.
            leanings: Of this text, by member.
            standing: The text's; it changes.
            rounds: Since this was asked last.
        """
        if not self._remote:
            return 0
        standing.rounds += rounds
        if standing.rounds >= _SETTLE_EVERY:
            rates: dict[Arm, float] = {}
            for arm in self._useful(usual):
                remote, rate = arm & self._remote, self._rate(arm, usual, leanings)
                rates[remote] = max(rate, rates.get(remote, 0.0))
            best = max(rates, key=rates.__getitem__)
            gain = rates[best] / rates[standing.remote] - 1
            standing.missed = standing.missed + _SETTLE_EVERY * gain if gain else 0.0
            if standing.missed >= _CHANGE:
                standing.remote, standing.missed = best, 0.0
            standing.rounds = 0
        return (standing.remote | self._trial(self._round + 1)) & self._remote

    def choose(
        self,
        foreseen: Seq[float],
        leanings: Seq[Leaning],
        present: Arm,
        remote: Arm,
        standing: Standing,
    ) -> Arm:
        """The set to draft with: the most tokens a second, now and then one not seen for long.

        Args:
            foreseen: Tokens each member expects of the next round; 0 of those that cannot say.
            leanings: Of this text, by member.
            present: The set that took part last.
            remote: Those of the remote ones that take part.
            standing: The text's.
        """

        def next_round(arm: Arm) -> float:
            return self._rate(arm, foreseen, leanings) * (_STAY if arm == present else 1.0)

        self._round += standing.chosen == self._round  # who has chosen in it begins the next
        standing.chosen = self._round
        sets = (arm for arm in self._useful(foreseen) if arm & self._remote == remote)
        trials = (self._round + 1) // _TRY_EVERY  # a round ahead: remote ones are told then
        if trials > self._trials:
            self._trials = trials
            self._tried = min(range(self._members), key=self._last.__getitem__)
            self._last[self._tried] = self._round  # also where it is not there to take part
        return max(sets, key=next_round) | (self._trial(self._round) & ~self._remote)

    def _useful(self, foreseen: Seq[float]) -> list[Arm]:
        """All sets without members that expect nothing."""
        idle = self.foreseeing & sum(
            1 << member for member, tokens in enumerate(foreseen) if tokens < _BOUNDS[0]
        )
        return [arm for arm in range(1 << self._members) if not arm & idle]

    def _trial(self, round_: int) -> Arm:
        """Who has a trial in a round."""
        due = round_ >= _TRY_EVERY and round_ % _TRY_EVERY < _TRIAL_ROUNDS
        return 1 << self._tried if due else 0

    def ranked(self, foreseen: Seq[float]) -> list[int]:
        """Members, those first that bring the most tokens a node."""
        kind = _kind(foreseen)

        def value(member: int) -> float:
            nodes = self._nodes.get((1 << member, kind))
            sure = self.foreseeing >> member & 1
            tokens = foreseen[member] if sure else self._of(1 << member, kind).value
            return tokens / max(nodes.value, 1.0) if nodes is not None else tokens

        return sorted(range(self._members), key=value, reverse=True)

    def learn(
        self,
        arm: Arm,
        foreseen: Seq[float],
        leanings: Seq[Leaning],
        path: Seq[Arm],
        wanted: Seq[Arm],
        missed: Arm = 0,
    ) -> None:
        """Takes what a round brought.

        Args:
            arm: Who took part.
            foreseen: As it was chosen by.
            leanings: Of this text, by member; they learn as well.
            path: Who wanted each accepted node, from the root's child down.
            wanted: Who wanted each node.
            missed: Who was to take part, and was not waited for until the end.
        """
        kind, counts = _kind(foreseen), Counter(wanted)
        for part in _parts(arm):
            self._known(self._came, part, kind, 1.0).add(0.0 if part & missed else 1.0)
            nodes = self._nodes.setdefault((part, kind), Mean(0.0, 0.0))
            nodes.add(sum(count for backers, count in counts.items() if backers & part))
        for member in range(self._members):
            alone = 1 << member
            if arm & alone:
                self._last[member] = self._round
                if not (self.foreseeing | missed) & alone:
                    leanings[member].add(reach(path, alone), self._of(alone, kind).value)
            leanings[member].fade()
        if sure := arm & self.foreseeing:
            kept = self._kept.setdefault((sure, kind), Leaning())
            kept.fade()
            kept.add(reach(path, sure), _best(foreseen, sure))
        for part in _parts(arm & ~missed):
            if part & ~self.foreseeing:
                more = reach(path, part) - reach(path, part & self.foreseeing)
                self._of(part, kind).add(more)

    def follow(self, arm: Arm, foreseen: Seq[float], leanings: Seq[Leaning], tokens: int) -> float:
        """Takes a round in which a set was all by itself, and what others foresee was not asked.

        Args:
            arm: Remote members.
            foreseen: As it is as a rule.
            leanings: Of this text, by member; they learn.
            tokens: Draft tokens accepted.

        Returns:
            How much more this text gets from them than others do.
        """
        kind = _kind(foreseen)
        for member, leaning in enumerate(leanings):
            if arm >> member & 1:
                leaning.add(tokens, self._of(1 << member, kind).value)
            leaning.fade()
        return self.factor(arm, leanings)

    def took(self, arm: Arm, nodes: int, after: Arm, seconds: float) -> None:
        """Takes a round's time.

        It goes until the next tree is proposed: where the text goes on in a way that a drafter did
        not reckon with, because others guessed it, that draft is waited for.

        Args:
            arm: Who took part.
            nodes: Of its tree.
            after: Who takes part in the round after.
            seconds: From when its tree was proposed until that of the round after is.
        """
        if (arm ^ after) & ~self.foreseeing:
            return  # what the others are waited for says nothing of a set without them
        slow = self._slow.setdefault(arm, Mean(1.0))
        slow.age(self._round)
        slow.add(min(seconds / self._cost.unloaded_s(nodes), _FAR * slow.value))

    def patience_s(self, arm: Arm, foreseen: Seq[float], leanings: Seq[Leaning]) -> float:
        """How long to wait for those of a set that do not foresee, rather than go without them."""
        more = self._of(arm, _kind(foreseen)).value * self.factor(arm, leanings)
        return _PATIENCE * more / self._rate(arm & self.foreseeing, foreseen, leanings)

    def factor(self, arm: Arm, leanings: Seq[Leaning]) -> float:
        """How much more a text gets from those of a set that do not foresee than others do."""
        others = arm & ~self.foreseeing
        factors = (leanings[m].factor for m in range(self._members) if others >> m & 1)
        return max(factors, default=1.0)

    def _rate(self, arm: Arm, foreseen: Seq[float], leanings: Seq[Leaning]) -> float:
        kind, sure = _kind(foreseen), arm & self.foreseeing
        tokens = 0.0
        if sure:
            kept = self._kept.get((sure, kind))
            tokens = _best(foreseen, sure) * (kept.factor if kept is not None else 1.0)
        if arm & ~self.foreseeing:
            came = self._known(self._came, arm, kind, 1.0).value
            tokens += came * self._of(arm, kind).value * self.factor(arm, leanings)
        nodes = self._nodes.get((arm, kind))
        seconds = self._cost.unloaded_s(round(nodes.value) if nodes is not None else 0)
        slow = self._slow.setdefault(arm, Mean(1.0))
        return self._cost.rate(1.0 + tokens, slow.value * seconds)

    def _of(self, arm: Arm, kind: int) -> Mean:
        """Tokens of a set beyond those of its members that foresee, in a kind of round."""
        prior = _PRIOR_BESIDE if arm & self.foreseeing else _PRIOR_ALONE
        return self._known(self._more, arm, kind, prior)

    @staticmethod
    def _known(means: dict[tuple[Arm, int], Mean], arm: Arm, kind: int, prior: float) -> Mean:
        """A set's mean in a kind of round; at first what it is in the others."""
        found = means.get((arm, kind))
        if found is None:
            known = [mean.value for (other, _), mean in means.items() if other == arm]
            value = sum(known) / len(known) if known else prior
            found = means[arm, kind] = Mean(value)
        return found


def reach(path: Seq[Arm], arm: Arm) -> int:
    """How far down an accepted path a set comes by itself."""
    for depth, backers in enumerate(path):
        if not backers & arm:
            return depth
    return len(path)


def _kind(foreseen: Seq[float]) -> int:
    return bisect_right(_BOUNDS, max(foreseen))


def _best(foreseen: Seq[float], arm: Arm) -> float:
    """Most tokens that one member of a set expects to bring."""
    return max(tokens for member, tokens in enumerate(foreseen) if arm >> member & 1)


def _parts(arm: Arm) -> Seq[Arm]:
    """All sets within a set, but the empty one."""
    return [part for part in range(1, arm + 1) if part & arm == part]
