"""Which drafter mirrors a text, if any: the first of the request's that can be reached and pays.

A mirror is a prefill and news of every round, so a drafter from which most texts would have no
drafts gets none, but for a probe now and then. A text leaves a drafter that does not pay for it
where another is measured to be better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from common import fence
from common.sampling_params import SamplingParams
from verifier.cost import StepCost
from verifier.drafting.acquaintance import Acquaintance, TextKind
from verifier.drafting.clock import DraftClock
from verifier.drafting.length import Acceptance, DraftLength, gain
from verifier.drafting.link import DraftLink, LinkSource, Opening, Wish
from verifier.drafting.session import DraftSession, RemoteMirror
from verifier.sequence import Sequence

MOST_DRAWN = 32
"""Tokens a drafter draws from where it must say what they were; of equal ones there may be more."""

LEAST_ROOM = 3
"""Tokens a text must have to come for a mirror: one, and a round later a draft of one and the bonus
after it. Shorter ones, as where a prompt is only to be judged, would be a prefill for nothing."""

_OTHER_SEED = 0x5DEECE66D1CE4E5B
"""Turns a request's seed into the one its drafter draws with under rejection."""

_PROBE_ROUNDS = 4
"""With drafts from a drafter that did not pay, to find out whether it does by now; one, where its
answer is as slow as it was."""

_LEFT_S = 60.0
"""How long a session does not come back to a drafter that it left for a better one."""

_MUCH_BETTER = 1.1
"""Gain of another drafter, over this one's, that is worth a prefill there."""


@dataclass(kw_only=True)
class Pairing:
    """Opens and ends mirrors.

    Args:
        links: Finds the link to a drafter.
        draft_tokens: Longest draft where a request leaves the length open.
        fanout: Most bonus tokens to draft for ahead of each outcome.
        near_fanout: The same of drafters on processors of this process.
        cost: Of the engine's steps.
        texts: How many the method has, those among them that gave way or have no drafter.
        kinds: Of them.
        processors: That passes of several texts take; 0 where they run on a device.
    """

    links: LinkSource
    draft_tokens: int
    fanout: int
    near_fanout: int
    cost: StepCost
    texts: Callable[[], int]
    kinds: Callable[[], Collection[TextKind]]
    processors: int = 0
    acceptance: Acceptance = field(default_factory=lambda: Acceptance(forget=0.998))
    """Of all drafters together."""
    touched: set[DraftLink] = field(default_factory=set)
    """Those that have something to send."""
    # Paired with, by address; those that nobody has to do with are not kept for this.
    _known: WeakValueDictionary[str, DraftLink] = field(default_factory=WeakValueDictionary)

    def pair(
        self,
        session: DraftSession,
        now: float,
        addresses: Seq[str] | None = None,
        *,
        wanted: bool = True,
    ) -> None:
        """Opens a mirror of all committed ids at the first drafter that can be reached and pays.

        Args:
            session: The text, which forgets the drafter it has.
            now: Seconds, of the monotonic clock.
            addresses: Of the drafters to choose from; the request's where None.
            wanted: Whether there are to be drafts ahead of the next token.
        """
        session.unlink()
        found = self._candidate(session, now, addresses or session.sequence.request.drafters)
        if found is not None:
            link, pays = found
            self._mirror(session, link, on_trial=not pays, wanted=pays and wanted)

    def _candidate(
        self, session: DraftSession, now: float, addresses: Seq[str]
    ) -> tuple[DraftLink, bool] | None:
        """The first drafter that can be reached and pays or is due for a trial; whether it pays."""
        for address in addresses:
            link = self._free(address, session, now)
            if link is None:
                continue
            known = link.known.of(session.kind)
            worth_it, clock = self.pays(known), known.clock
            if worth_it:
                clock.paid()
            pays = worth_it or session.sequence.request.draft_tokens > 0
            if not pays and now < clock.probe_at:
                session.refused[link] = clock.probe_at
                continue
            if not pays:
                rounds = 1 if self.too_far(known) else _PROBE_ROUNDS
                row_s = self.cost.round_s(1) - self.cost.round_s(0)
                clock.probed(now, rounds * (clock.cost.at(1) + row_s))
            self._known[address] = link
            return link, pays
        return None

    def _mirror(
        self, session: DraftSession, link: DraftLink, *, on_trial: bool, wanted: bool
    ) -> None:
        """Opens a mirror, with drafts ahead of the next token where some are wanted."""
        request, ids = session.sequence.request, session.sequence.ids
        known = link.known.of(session.kind)
        session.incarnation += 1
        session.mirror = RemoteMirror(
            link,
            session.id,
            session.incarnation,
            drawn=session.drawn,
            length=self._length(known, _PROBE_ROUNDS if on_trial else 0),
            base=len(ids),
            path_hash=fence.extend(fence.EMPTY, ids),
            on_trial=on_trial,
        )
        link.meter.sessions += 1
        wish = Wish()
        if wanted:
            wish = self.wish(session.sequence, self._length(known), link, known.clock)
        opening = Opening(ids, _sampling(session), session.drawn, request.cache_salt, wish)
        link.open(session.id, session.incarnation, opening)
        self.touched.add(link)

    def possible(self, session: DraftSession, now: float) -> bool:
        """Whether some drafter can be reached, and would be asked to mirror the text."""
        drafters = session.sequence.request.drafters
        return any(self._free(address, session, now) for address in drafters)

    def _free(self, address: str, session: DraftSession, now: float) -> DraftLink | None:
        """A drafter that can be reached, unless it is not to be asked, or the text is about to end;
        one that is lost is looked for."""
        link = self.links(address)
        if link is None or not link.reach() or link.known.silence.paused(now):
            return None
        asked = session.refused.get(link, 0.0) <= now
        return link if asked and session.sequence.room >= LEAST_ROOM else None

    def move(self, session: DraftSession, link: DraftLink, now: float) -> bool:
        """Leaves a drafter that does not pay for one that is measured to be better, if any."""
        least = _MUCH_BETTER * max(link.meter.gain, 1.0)
        others = [
            (other.meter.gain, address)
            for address, other in self._known.items()
            if address in session.sequence.request.drafters
            and other is not link
            and other.meter.gain > least
            and self._free(address, session, now) is other
        ]
        if not others:
            return False
        session.refused[link] = now + _LEFT_S
        self.part(session)
        self.pair(session, now, [max(others)[1]])
        return True

    def part(self, session: DraftSession) -> None:
        """Ends a mirror, where there is one."""
        mirror = session.mirror
        if mirror is not None and mirror.link.up:
            mirror.link.close(session.id, mirror.incarnation)
            self.touched.add(mirror.link)
        session.unlink()

    def _length(self, known: Acquaintance, trial: int = 0) -> DraftLength:
        """Draft lengths of a text like others that a drafter has drafted for, if any."""
        acceptance = known.token_acceptance
        if acceptance is None:
            return DraftLength(Acceptance(prior=self.acceptance.rate))
        return DraftLength(Acceptance(prior=acceptance), trial)

    def pays(self, known: Acquaintance) -> bool:
        """Whether a text like others would have a drafter's drafts."""
        return self._choose(self._length(known), known.clock) > 0

    def acquainted(self, kind: TextKind) -> bool:
        """Whether some drafter is known well enough to say what its drafts for a text are worth."""
        links = self._known.values()
        return any(link.known.of(kind).token_acceptance is not None for link in links)

    def foretell(self, texts: int) -> bool | None:
        """What is to be expected of drafts of several texts: False where no known drafter's pay.

        None where some might: what is fitted leaves costs out, but for those that show with one
        text, so that drafts pay it cannot tell.
        """
        texts = min(texts, self.texts())  # those of other methods have no drafts of these drafters
        for link in self._known.values():
            shared = self.processors if link.near else 0
            for known in map(link.known.of, self.kinds()):
                acceptance, clock = known.token_acceptance, known.clock
                if acceptance is None:
                    continue
                best = gain(acceptance, self.draft_tokens, self.cost, clock.cost.at, texts, shared)
                if best > clock.slowness:
                    return None
        return False

    def too_far(self, known: Acquaintance) -> bool:
        """Whether a drafter's drafts would not pay though every token of them were right."""
        perfect = DraftLength(Acceptance(prior=1.0), trial=0)
        return self._choose(perfect, known.clock) == 0

    def wish(
        self, sequence: Sequence, length: DraftLength, link: DraftLink, clock: DraftClock
    ) -> Wish:
        """What to ask for a text's next round: what its request says, or what pays.

        Args:
            sequence: The text.
            length: What is known of its drafts.
            link: The drafter, as it is.
            clock: How fast it answers this text.
        """
        room, asked = sequence.room - 1, sequence.request.draft_tokens
        fanout = self.near_fanout if link.near else self.fanout
        if asked:
            return Wish(max(min(asked, room), 0), fanout)
        most = min(self.draft_tokens, room)
        best = self._choose(length, clock, most) if most > 0 else 0
        if not best:
            return Wish()
        if not length.ahead:
            fanout = 0
        if length.forced or not any(length.least):  # its odds are not believed; rows cost nothing
            return Wish(best, fanout)
        return Wish(most, fanout, length.least)

    def _choose(self, length: DraftLength, clock: DraftClock, room: int | None = None) -> int:
        """The draft length that pays best, of those there is room for."""
        foresight, slowness, texts = clock.foresight, clock.slowness, self.texts()
        return length.choose(
            self.draft_tokens, self.cost, clock.cost.at, foresight, slowness, texts, room
        )


def _sampling(session: DraftSession) -> SamplingParams:
    """How the drafter is to choose its tokens.

    The coupled rule wants the noise of the target itself. Rejection wants draws that are
    independent of it: another seed, and few enough tokens that all can be sent.
    """
    sampling = session.sequence.request.sampling
    if not session.drawn:
        return sampling
    most = min(sampling.top_k or MOST_DRAWN, MOST_DRAWN)
    return replace(sampling, seed=sampling.seed ^ _OTHER_SEED, top_k=most)
