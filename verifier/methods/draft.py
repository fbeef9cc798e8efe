"""Drafts from a small model on another machine.

The drafter mirrors each session and sends branches; this side keeps, for each session, the
key of its last round and the branch that arrived for it. Nothing the drafter does or fails to
do can change the text; a late or lost one costs time, and how much time is bounded by the
link's clocks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from common import fence
from common.fading_mean import FadingMean
from common.model.tree import TokenTree
from verifier.cost import StepCost
from verifier.methods.acquaintance import TextKind
from verifier.methods.base import Outcome
from verifier.methods.crowd import Crowd
from verifier.methods.draft_link import Branch, DraftLink, LinkSource, RoundKey, Wish
from verifier.methods.draft_news import DraftNews
from verifier.methods.draft_session import MOST_UNTOLD, Asked, DraftSession
from verifier.methods.gate import Gate
from verifier.methods.pairing import Pairing, draws
from verifier.methods.scouts import Scouts
from verifier.sequence import Sequence


@dataclass
class DraftProposer:
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
            self.links,
            self.draft_tokens,
            self.fanout,
            self.near_fanout,
            self.cost,
            self._sessions.__len__,
            self._kinds,
            self.processors,
        )
        self.news = DraftNews(self._pairing.too_far)
        self._gate = Gate(self.crowd, first=False, foretell=self._pairing.foretell)

    def open(self, sequence: Sequence) -> None:
        """Opens a mirror.

        Not where the load is one in which drafts do not pay: a mirror is a prefill, and its news.
        """
        session = self.news.begin(self._pairing.first_length(), draws(sequence.request))
        self._sessions[sequence] = session
        if not self._pairing.acquainted(session.kind(len(sequence.ids))):
            self._scouts.offer(sequence)
        now = time.monotonic()
        if self._drafting(sequence, session, now):
            self._pairing.pair(sequence, session, now)

    def ready(self, sequence: Sequence, now: float) -> bool:
        """Whether a branch is there, or none is worth waiting for."""
        session = self._sessions[sequence]
        if session.key is None or session.branch is not None or now >= session.deadline:
            return True
        return session.link is None or not session.link.alive

    def rests(self, sequence: Sequence) -> bool:
        """Where it has no drafter, and is to have none; or one that is asked for nothing."""
        session, now = self._sessions[sequence], time.monotonic()
        if session.link is None:
            return not self._pays(sequence, session, now)
        waits = session.key is not None or session.ended_at is not None  # a round that is timed
        return not waits and not self._drafting(sequence, session, now)

    def propose(self, sequence: Sequence, tree: TokenTree, budget: int) -> None:
        """Adds the branch that arrived, as a chain; nothing where there is none."""
        session = self._sessions[sequence]
        if session.link is None:  # nor a branch, as where load leaves no room for drafts
            return
        now = session.proposed_at = time.monotonic()
        if session.key is not None and session.branch is None:
            session.known.clock.silence.missed(session.sent_at, now)
            session.late = Asked(session.key, session.sent_at)
            session.ready_at = now
        if session.key is not None:
            self.wait.add(max(session.ready_at - session.sent_at, 0.0), now)
        branch = session.branch or Branch()
        session.key, session.branch = None, None
        session.tree, session.proposed = tree, _add(branch.cut(budget), tree)
        if session.proposed:
            self._gate.joined()
        if len(session.proposed) < len(branch):  # cut: nobody drafts for its outcomes
            session.flight, session.ahead = None, []

    def observe(self, sequence: Sequence, outcome: Outcome) -> None:
        """Tells the drafter, and asks for the branch after this outcome."""
        session, now = self._sessions[sequence], time.monotonic()
        tree, ids = outcome.tree, outcome.ids
        if sequence in self._scouts and self._pairing.acquainted(session.kind(len(sequence.ids))):
            self._scouts.learnt()
        drafting = self._drafting(sequence, session, now)
        if session.link is None and not session.proposed:
            if drafting and not sequence.finished:
                self._pairing.pair(sequence, session, now, wanted=outcome.wanted)
            return
        checked = session.proposed if tree is session.tree else []
        session.proposed, session.tree = [], None
        right = _common(checked, outcome.accepted)
        session.length.observe(len(checked), right)
        self._pairing.acceptance.observe(len(checked), right)
        self._measure(sequence, session, len(checked), right, len(ids), now)
        key = RoundKey(
            base=len(sequence.ids) - len(ids),
            path_hash=fence.extend(session.path_hash, [tree.ids[node] for node in checked]),
            accepted=right,
            bonus=ids[-1],
        )
        session.base, session.path_hash = len(sequence.ids), fence.extend(session.path_hash, ids)
        if sequence.finished:
            return
        if session.link is None or not session.link.alive:
            if drafting:
                self._pairing.pair(sequence, session, now, wanted=outcome.wanted)
            return
        much = len(session.untold) + len(ids) >= MOST_UNTOLD
        if not drafting:
            session.ended_at = None  # a round like this says nothing of the drafter
            session.length.reconsider()
            if much or not session.warm:
                self._pairing.part(session)
                return
        branch = None
        if right == len(ids) - 1:  # else another method went on where the chain broke
            branch = self.news.foreseen(session, key)
        wants = drafting and outcome.wanted
        wish = self._wish(sequence, session, session.link, now) if wants else Wish()
        wanted = wish.draft_tokens
        if drafting and session.warm and not wanted:
            self._gate.joined()
        if drafting and session.length.resting:
            if self._pairing.move(sequence, session, session.link, now):
                return
            enough = much or session.on_trial
            if enough and not wanted and not self._pairing.pays(session.known):
                self._pairing.part(session)
                return
        most = min(sequence.room - 1, sequence.request.draft_tokens or self.draft_tokens)
        branch = (branch or Branch()).cut(most if wanted else 0)
        key = session.tell(session.link, key, ids, wish, verifying=len(branch))
        if not session.untold:
            self._pairing.touched.add(session.link)
        session.branch, session.wanted, session.key = None, wanted, key if wanted else None
        if checked:
            session.known.clock.foresaw(bool(branch))
        session.past = session.flight or session.past
        session.flight, session.ahead = None, []
        if branch:
            session.take(branch, key, time.monotonic())
        session.sent_at = now
        session.deadline = now + max(session.known.clock.patience_s, self.cost.round_s(0))

    def close(self, sequence: Sequence) -> None:
        """Ends the mirror."""
        session = self._sessions.pop(sequence, None)
        if session is not None:
            self.news.end(session)
            self._pairing.part(session)
        self._scouts.over(sequence)

    def flush(self) -> None:
        """Sends each drafter its part of the step."""
        for link in self._pairing.touched:
            link.flush()
        self._pairing.touched.clear()

    def deadline(self, since: float) -> float | None:
        """See `Waiting`."""
        sessions = self._sessions.values()
        waiting = [s.deadline for s in sessions if s.key is not None and s.branch is None]
        return min((deadline for deadline in waiting if deadline > since), default=None)

    def waited(self, sequence: Sequence) -> tuple[float, float]:
        """See `Remote`."""
        session = self._sessions.get(sequence)
        if session is None or session.link is None:
            return 0.0, 0.0
        return session.ready_at, session.known.clock.cost.at(0)

    def _measure(
        self,
        sequence: Sequence,
        session: DraftSession,
        checked: int,
        right: int,
        committed: int,
        now: float,
    ) -> None:
        """Counts a round for its drafter; times it where the draft's length was for us to say."""
        if session.link is None:
            return
        meter, began = session.link.meter, session.ended_at
        if checked:
            meter.checked(checked, right)
            session.known.checked(checked, right)
        free = sequence.method == "draft" and not sequence.request.draft_tokens
        session.ended_at = now if session.warm and free else None
        if began is None or session.ended_at is None:
            return
        expected_s = session.length.expected_s(checked)
        if checked and expected_s and self.crowd.sequences <= 1:  # beside others the gate decides
            session.known.clock.took(now - began, expected_s)
        plain = min(self.cost.plain_s / self.cost.round_s(checked), 1.0)
        meter.timed(
            drafted=checked,
            tokens=committed,
            seconds=now - began,
            plain_s=(now - session.proposed_at) * plain,
            now=now,
        )

    def _kinds(self) -> set[TextKind]:
        """Of all texts."""
        return {each.kind(len(sequence.ids)) for sequence, each in self._sessions.items()}

    def _drafting(self, sequence: Sequence, session: DraftSession, now: float) -> bool:
        """Whether to draft for a sequence; for a scout, too, where it does not pay."""
        return self._pays(sequence, session, now) or sequence in self._scouts

    def _pays(self, sequence: Sequence, session: DraftSession, now: float) -> bool:
        """Whether drafts pay beside all else that runs; who asks for a length gets them anyway.

        Not where there are none to be had: such a text need not be asked before each pass.
        """
        request = sequence.request
        pays = request.draft_tokens > 0 or self._gate.drafting(len(self._sessions), now)
        if not pays or session.link is not None:
            return pays
        return self._pairing.possible(request, session, now)

    def _wish(self, sequence: Sequence, session: DraftSession, link: DraftLink, now: float) -> Wish:
        """What to ask for; nothing of a cold mirror."""
        if not session.warm or session.known.clock.silence.paused(now):
            return Wish()
        room = sequence.room - 1
        return self._pairing.wish(sequence.request, session.length, link, session.known.clock, room)


def _add(branch: Branch, tree: TokenTree) -> list[int]:
    """Adds a branch as a chain; returns its nodes."""
    if not branch.drawn:
        return tree.path(tree.add_path(branch.ids))
    nodes, node = [], 0
    for token, drawn in zip(branch.ids, branch.drawn, strict=True):
        node = tree.draw(node, token, drawn)
        nodes.append(node)
    return nodes


def _common(checked: Ids[int], accepted: Ids[int]) -> int:
    """How many nodes of a chain were right, from its start."""
    right = 0
    for mine, theirs in zip(checked, accepted, strict=False):
        if mine != theirs:
            break
        right += 1
    return right
