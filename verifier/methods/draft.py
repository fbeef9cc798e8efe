"""Drafts from a small model on another machine.

The drafter mirrors each session and sends branches; this side keeps, for each session, the
key of its last round and the branch that arrived for it. Nothing the drafter does or fails to
do can change the text; a late or lost one costs time, and how much time is bounded by the
link's clocks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from common.fading_mean import FadingMean
from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.drafting.acquaintance import TextKind
from verifier.drafting.link import Branch, Ended, LinkSource, Wish
from verifier.drafting.news import DraftNews
from verifier.drafting.pairing import LEAST_ROOM, Pairing
from verifier.drafting.scouts import Scouts
from verifier.drafting.session import MOST_UNTOLD, Asked, DraftSession, RemoteMirror
from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.proposer import Outcome, Proposer
from verifier.sequence import Sequence


@dataclass
class DraftProposer(Proposer):
    """Drafts by way of links.

    Args:
        links: Finds the link to a drafter.
        draft_tokens: Longest draft where a request leaves the length open.
        cost: Of the engine's steps.
        crowd: All sequences of the engine.
        fanout: Most bonus tokens to draft for ahead of each outcome; 0 drafts nothing ahead.
        near_fanout: The same of drafters on processors that a pass may take.
        processors: That passes of several texts take; 0 where they run on a device.
    """

    links: LinkSource
    draft_tokens: int
    cost: StepCost
    crowd: Crowd
    fanout: int
    near_fanout: int
    processors: int = 0
    news: DraftNews = field(init=False)
    """What links have to tell goes there."""
    wait: FadingMean = field(default_factory=lambda: FadingMean(weight=0.05))
    """Time that rounds wait for the drafts they asked for, in seconds."""
    _pairing: Pairing = field(init=False)
    _sessions: dict[Sequence, DraftSession] = field(default_factory=dict)
    _gate: Gate = field(init=False)
    _scouts: Scouts = field(default_factory=Scouts)

    def __post_init__(self) -> None:
        self._pairing = Pairing(
            links=self.links,
            draft_tokens=self.draft_tokens,
            fanout=self.fanout,
            near_fanout=self.near_fanout,
            cost=self.cost,
            texts=self._sessions.__len__,
            kinds=self._kinds,
            processors=self.processors,
        )
        self.news = DraftNews(self._pairing.too_far)
        self._gate = Gate(self.crowd, first=False, foretell=self._pairing.foretell)

    def open(self, sequence: Sequence) -> None:
        """Opens a mirror.

        Not where the load is one in which drafts do not pay: a mirror is a prefill, and its news.
        """
        session = self._sessions[sequence] = self.news.begin(sequence)
        if sequence.room >= LEAST_ROOM and not self._pairing.acquainted(session.kind):
            self._scouts.offer(sequence)
        now = time.monotonic()
        if self._drafting(session, now):
            self._pairing.pair(session, now)

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether a branch is there, or none is worth waiting for."""
        mirror = self._sessions[sequence].mirror
        if mirror is None or not mirror.waits:
            return True
        return now >= mirror.deadline or not mirror.link.up

    def rests(self, sequence: Sequence) -> bool:
        """Where it has no drafter, and is to have none; or one that is asked for nothing."""
        session, now = self._sessions[sequence], time.monotonic()
        mirror = session.mirror
        if mirror is None:
            return not self._pays(session, now)
        waits = mirror.key is not None or mirror.ended_at is not None  # a round that is timed
        return not waits and not self._drafting(session, now)

    def asked(self, sequence: Sequence) -> bool:
        """Whether it has a warm drafter that pays, and whose draft's length is not 0."""
        mirror = self._sessions[sequence].mirror
        return mirror is not None and mirror.key is not None

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds the branch that arrived, as a chain; nothing where there is none."""
        session = self._sessions[sequence]
        mirror = session.mirror
        if mirror is None:  # nor a branch, as where load leaves no room for drafts
            return
        now = mirror.proposed_at = time.monotonic()
        if mirror.key is not None:
            if mirror.branch is None:
                self._missed(mirror, now)
                mirror.late = Asked(mirror.key, mirror.sent_at)
                mirror.ready_at = now
            self.wait.add(max(mirror.ready_at - mirror.sent_at, 0.0), now)
        branch = mirror.branch or Branch()
        mirror.key, mirror.branch = None, None
        session.tree, session.proposed = tree, _add(branch.cut(budget), tree)
        if session.proposed:
            self._gate.joined()
        if len(session.proposed) < len(branch):  # cut: nobody drafts for its outcomes
            mirror.flight, mirror.ahead = None, []

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Tells the drafter, and asks for the branch after this outcome."""
        session, now = self._sessions[sequence], time.monotonic()
        if sequence in self._scouts and self._pairing.acquainted(session.kind):
            self._scouts.learnt()
        drafting = self._drafting(session, now)
        checked, tested, right = self._checked(session, outcome)
        mirror = session.mirror
        if mirror is None:
            if drafting and not sequence.finished:
                self._pairing.pair(session, now, wanted=outcome.wanted)
            return
        if checked:
            mirror.link.meter.checked(len(checked), tested, right)
            mirror.known.checked(tested, right)
        self._measure(sequence, mirror, len(checked), len(outcome.ids), now)
        key = mirror.end_round(len(sequence.ids), outcome, checked, right)
        if sequence.finished:
            return
        if not mirror.link.up:
            if drafting:
                self._pairing.pair(session, now, wanted=outcome.wanted)
            return
        asks = drafting and outcome.wanted
        wish = self._wish(sequence, mirror, now) if asks else Wish()
        ended = Ended(key, outcome.ids, wish)
        if self._stays(session, mirror, ended, now, drafts=drafting):
            self._ask(sequence, mirror, ended, now, checked=len(checked) > 0)

    def close(self, sequence: Sequence) -> None:
        """Ends the mirror."""
        session = self._sessions.pop(sequence, None)
        if session is not None:
            self.news.end(session)
            self._pairing.part(session)
        if not self._sessions:
            self._gate.left()
        self._scouts.over(sequence)

    def flush(self) -> None:
        """Sends each drafter its part of the step."""
        while self._pairing.touched:
            self._pairing.touched.pop().flush()

    def deadline(self, since: float) -> float | None:
        """See `Waiting`."""
        mirrors = [session.mirror for session in self._sessions.values()]
        waiting = [mirror.deadline for mirror in mirrors if mirror is not None and mirror.waits]
        return min((deadline for deadline in waiting if deadline > since), default=None)

    def waited(self, sequence: Sequence) -> tuple[float, float]:
        """When the draft now checked had come, and what its way takes on average, in seconds.

        The first is of the monotonic clock, and long past where no draft was waited for.
        """
        session = self._sessions.get(sequence)
        mirror = session.mirror if session is not None else None
        if mirror is None:
            return 0.0, 0.0
        return mirror.ready_at, mirror.known.clock.cost.at(0)

    def _checked(self, session: DraftSession, outcome: Outcome) -> tuple[list[int], int, int]:
        """The nodes that the round checked of a drafter's; how many of them say how often tokens
        are right, and how many were."""
        if session.tree is None:
            return [], 0, 0
        checked = session.proposed if outcome.tree is session.tree else []
        session.proposed, session.tree = [], None
        right = _common(checked, outcome.accepted)
        tested = right if right == len(outcome.ids) else len(checked)  # nothing behind a text's end
        self._pairing.acceptance.observe(tested, right)
        return checked, tested, right

    def _missed(self, mirror: RemoteMirror, now: float) -> None:
        """Notes a branch that did not come in time; where its drafter hangs, all texts leave it."""
        link = mirror.link
        if link.known.silence.missed(mirror.sent_at, now):
            self.news.lost(link)  # at once: nothing more is asked of this stream
            link.hang_up("it does not answer")

    def _stays(
        self, session: DraftSession, mirror: RemoteMirror, ended: Ended, now: float, *, drafts: bool
    ) -> bool:
        """Whether the mirror goes on; else it is ended, or opened at a better drafter."""
        much = len(mirror.untold) + len(ended.ids) >= MOST_UNTOLD
        if drafts:
            if mirror.warm and not ended.wish.draft_tokens:
                self._gate.joined()
            resting = mirror.length.resting
            if resting and self._pairing.move(session, mirror.link, now):
                return False
            enough = resting and (much or mirror.on_trial) and not ended.wish.draft_tokens
            stays = not enough or self._pairing.pays(mirror.known)
        else:
            mirror.ended_at = None  # a round like this says nothing of the drafter
            mirror.length.reconsider()
            stays = mirror.warm and not much
        if not stays:
            self._pairing.part(session)
        return stays

    def _ask(
        self, sequence: Sequence, mirror: RemoteMirror, ended: Ended, now: float, *, checked: bool
    ) -> None:
        """Tells how a round ended, and asks for the branch after it, unless that came ahead."""
        wanted, branch = ended.wish.draft_tokens, None
        if ended.key.accepted == len(ended.ids) - 1:  # else another method went on from the chain
            branch = self.news.foreseen(mirror, ended.key)
        most = min(sequence.room - 1, sequence.request.draft_tokens or self.draft_tokens)
        branch = (branch or Branch()).cut(most if wanted else 0)
        key = mirror.tell(ended._replace(verifying=len(branch)))
        if not mirror.untold:
            self._pairing.touched.add(mirror.link)
        mirror.branch, mirror.wanted, mirror.key = None, wanted, key if wanted else None
        if checked:
            mirror.known.clock.foresaw(bool(branch))
        mirror.past = mirror.flight or mirror.past
        mirror.flight, mirror.ahead = None, []
        if branch:
            mirror.take(branch, key, time.monotonic())
        mirror.sent_at = now
        mirror.deadline = now + max(mirror.known.clock.patience_s, self.cost.round_s(0))

    def _measure(
        self, sequence: Sequence, mirror: RemoteMirror, checked: int, committed: int, now: float
    ) -> None:
        """Times a round for its drafter where the draft's length was for us to say."""
        began = mirror.ended_at
        free = sequence.method == "draft" and not sequence.request.draft_tokens
        mirror.ended_at = now if mirror.warm and free else None
        if began is None or mirror.ended_at is None:
            return
        expected_s = mirror.length.expected_s(checked)
        if checked and expected_s and self.crowd.sequences <= 1:  # beside others the gate decides
            mirror.known.clock.took(now - began, expected_s)
        plain = min(self.cost.plain_s / self.cost.round_s(checked), 1.0)
        mirror.link.meter.timed(
            drafted=checked,
            tokens=committed,
            seconds=now - began,
            plain_s=(now - mirror.proposed_at) * plain,
            now=now,
        )

    def _kinds(self) -> set[TextKind]:
        """Of all texts."""
        return {session.kind for session in self._sessions.values()}

    def _drafting(self, session: DraftSession, now: float) -> bool:
        """Whether to draft for a text; for a scout, too, where it does not pay."""
        return self._pays(session, now) or session.sequence in self._scouts

    def _pays(self, session: DraftSession, now: float) -> bool:
        """Whether drafts pay beside all else that runs; who asks for a length gets them anyway.

        Not where there are none to be had: such a text need not be asked before each pass.
        """
        asked = session.sequence.request.draft_tokens > 0
        pays = asked or self._gate.drafting(len(self._sessions), now)
        if not pays or session.mirror is not None:
            return pays
        return self._pairing.possible(session, now)

    def _wish(self, sequence: Sequence, mirror: RemoteMirror, now: float) -> Wish:
        """What to ask for; nothing of a cold mirror."""
        clock = mirror.known.clock
        if not mirror.warm or clock.silence.paused(now):
            return Wish()
        return self._pairing.wish(sequence, mirror.length, mirror.link, clock)


def _add(branch: Branch, tree: TokenTree) -> list[int]:
    """Adds a branch as a chain; returns its nodes."""
    if not branch.drawn:
        return tree.path(tree.add_path(branch.ids))
    nodes, node = [], 0
    for token, drawn in zip(branch.ids, branch.drawn, strict=True):
        node = tree.draw(node, token, drawn)
        nodes.append(node)
    return nodes


def _common(checked: Seq[int], accepted: Seq[int]) -> int:
    """How many nodes of a chain were right, from its start."""
    right = 0
    for mine, theirs in zip(checked, accepted, strict=False):
        if mine != theirs:
            break
        right += 1
    return right
