"""A session with scripted drafters and time by hand."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import torch

from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from common.model.output import Computed
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests.inprocess import Arrival
from verifier.cost import StepCost
from verifier.drafting.acquaintance import Acquaintances, TextKind
from verifier.drafting.clock import DraftClock
from verifier.drafting.link import Ended, Opening, RoundKey, Wish
from verifier.drafting.meter import PairMeter
from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.methods.draft import DraftProposer
from verifier.proposer import Outcome
from verifier.sequence import Request, Sequence
from verifier.totals import Totals

GREEDY = SamplingParams()
SHORT = TextKind()
DRAWN = TextKind(drawn=True)


@dataclass(eq=False)
class Link:
    """A drafter that writes down what it is told."""

    up: bool = True
    near: bool = False
    known: Acquaintances = field(default_factory=Acquaintances)
    meter: PairMeter = field(default_factory=PairMeter)
    opened: list[tuple[int, int, list[int]]] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)
    ahead: list[Wish] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    asked: list[tuple[RoundKey, int]] = field(default_factory=list)
    told: list[list[int]] = field(default_factory=list)
    verifying: list[int] = field(default_factory=list)
    closed: int = 0
    hung_up: list[str] = field(default_factory=list)

    @property
    def clock(self) -> DraftClock:
        """How fast it answers short texts."""
        return self.known.of(SHORT).clock

    @property
    def drawing(self) -> DraftClock:
        """The same where it says what it draws from."""
        return self.known.of(DRAWN).clock

    def checked(self, rounds: int, drafted: int, accepted: int, kind: TextKind = SHORT) -> None:
        """Others have had drafts of it."""
        for _ in range(rounds):
            self.meter.checked(drafted, drafted, accepted)
            self.known.of(kind).checked(drafted, accepted)

    def known_well(self, answer_s: float = 0.0005) -> None:
        """Others have had drafts of it; where answers take ten milliseconds, none pays."""
        for kind in (SHORT, DRAWN):
            self.checked(40, 4, 2, kind)
        for _ in range(40):
            self.clock.answered(4, answer_s)

    def reach(self) -> bool:
        return self.up

    def open(self, session: int, incarnation: int, opening: Opening) -> None:
        self.opened.append((session, incarnation, list(opening.ids)))
        self.samplings.append(opening.sampling)
        self.ahead.append(opening.wish)

    def commit(self, session: int, incarnation: int, ended: Ended) -> None:
        self.wishes.append(ended.wish)
        self.asked.append((ended.key, ended.wish.draft_tokens))
        self.told.append(list(ended.ids))
        self.verifying.append(ended.verifying)

    def close(self, session: int, incarnation: int) -> None:
        self.closed += 1

    def flush(self) -> None:
        pass

    def hang_up(self, reason: str) -> None:
        self.hung_up.append(reason)


class Found(Gate):
    """A load of which is known whether drafts pay."""

    def __init__(self, *, pays: bool) -> None:
        super().__init__(Crowd(Totals()), first=pays)
        self._pays = pays

    def drafting(self, sequences: int, now: float) -> bool:
        return self._pays


class Clock:
    """Time by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Table:
    """One session with its proposer and drafters."""

    def __init__(
        self,
        *links: Link,
        draft_tokens: int = 3,
        step_s: float = 0.001,
        row_s: float = 0.0,
        acceptance: str = "coupled",
        top_k: int = 0,
        prompt_tokens: int = 3,
    ) -> None:
        self.links = {f"d{index}": link for index, link in enumerate(links)}
        cost = StepCost([(1, step_s), (64, step_s + 63 * row_s)])
        drawn = SamplingParams(temperature=1.0, top_k=top_k)
        self.proposer = DraftProposer(
            self.links.get,
            draft_tokens=8,
            cost=cost,
            crowd=Crowd(Totals()),
            fanout=2,
            near_fanout=0,
        )
        request = Request(
            request_id="r",
            prompt_ids=tuple(range(5, 5 + prompt_tokens)),
            max_tokens=200,
            method="draft",
            draft_tokens=draft_tokens,
            drafters=tuple(self.links),
            acceptance=acceptance,
            sampling=drawn if acceptance == "rejection" else GREEDY,
        )
        lease = KvLease(BlockManager(4, 16))
        self.sequence = Sequence(request, lambda event: None, lease, ticket=1)
        self.proposer.open(self.sequence)

    def another(self, number: int, prompt_ids: tuple[int, ...] = (5, 6, 7)) -> Sequence:
        """One more session, which is not opened."""
        request = replace(self.sequence.request, request_id=str(number), prompt_ids=prompt_ids)
        lease = KvLease(BlockManager(4, 16))
        return Sequence(request, lambda event: None, lease, ticket=2 + number)

    def round(self, token: int, tree: TokenTree | None = None, *, wanted: bool = True) -> None:
        """Ends a round in which nothing was accepted."""
        tree = tree or TokenTree(self.sequence.ids[-1])
        self.sequence.commit([token])
        self.observe(tree, [], [token], wanted=wanted)

    def observe(
        self, tree: TokenTree, accepted: Seq[int], ids: Seq[int], *, wanted: bool = True
    ) -> None:
        """Tells the proposer how a round ended; the tokens are committed."""
        outcome = Outcome(
            tree=tree,
            choices=(),
            accepted=accepted,
            ids=ids,
            output=Computed(torch.empty(1, 0), torch.empty(1, 0)),
            wanted=wanted,
        )
        self.proposer.observe(self.sequence, outcome)

    def propose(self, budget: int) -> TokenTree:
        """The tree of a round."""
        tree = TokenTree(self.sequence.ids[-1])
        self.proposer.propose(self.sequence, tree, budget)
        return tree

    def warm(self, incarnation: int = 1) -> None:
        self.proposer.news.warmed(1, incarnation)

    def answer(self, link: Link, ids: tuple[int, ...] = (1, 2, 3)) -> Arrival:
        arrival = Arrival(session=1, incarnation=1, key=link.asked[-1][0], ids=ids)
        self.proposer.news.arrived(arrival)
        return arrival
