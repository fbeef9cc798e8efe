"""The verifier's end of drafting: which branch counts, whom to ask, when to wait."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field, replace

import pytest
import torch

from common import fence
from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from common.model.output import Computed
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests.inprocess import Arrival
from verifier.cost import StepCost
from verifier.drafting import news, scouts, session
from verifier.drafting.acquaintance import Acquaintances, TextKind
from verifier.drafting.clock import DraftClock
from verifier.drafting.link import Branch, Ended, Opening, RoundKey, Wish
from verifier.drafting.meter import PairMeter
from verifier.gates.crowd import Crowd
from verifier.gates.gate import Gate
from verifier.methods import draft
from verifier.methods.draft import DraftProposer
from verifier.proposer import Outcome
from verifier.sequence import FinishReason, Request, Sequence
from verifier.totals import Totals

GREEDY = SamplingParams()


SHORT = TextKind()
DRAWN = TextKind(drawn=True)


@dataclass(eq=False)
class Link:
    """A drafter that writes down what it is told."""

    alive: bool = True
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (draft, news):
        monkeypatch.setattr(module, "time", clock)
    return clock


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

    def round(self, token: int, tree: TokenTree | None = None, *, wanted: bool = True) -> None:
        """Ends a round in which nothing was accepted."""
        tree = tree or TokenTree(self.sequence.ids[-1])
        self.sequence.commit([token])
        self.observe(tree, [], [token], wanted=wanted)

    def observe(
        self, tree: TokenTree, accepted: Ids[int], ids: Ids[int], *, wanted: bool = True
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


def test_a_cold_mirror_is_told_but_not_asked(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.round(8)
    assert link.asked[-1][1] == 0
    assert table.proposer.ready(table.sequence, clock.now)
    table.warm()
    table.round(9)
    assert link.asked[-1][1] == 3
    assert not table.proposer.ready(table.sequence, clock.now)


def test_while_no_draft_is_wanted_text_gathers(clock: Clock) -> None:
    """That it may rest is told at once; what is told next tells it all, as one round that checked
    nothing."""
    link = Link()
    table = Table(link)
    table.warm()
    table.round(8)
    table.answer(link)
    text = [token % 7 for token in range(41)]
    for token in text:
        table.round(token, table.propose(10), wanted=False)
    assert link.told[1:] == [text[:1], text[1:33]], "not for ever"
    before = list(table.sequence.ids[: -len(text) + 33])
    table.round(5)
    assert link.told[-1] == [*text[33:], 5]
    key, wanted = link.asked[-1]
    assert key == RoundKey(
        base=len(before), path_hash=fence.extend(fence.EMPTY, before), accepted=0, bonus=5
    )
    assert wanted == 3
    table.answer(link)
    assert table.propose(10).ids == [5, 1, 2, 3]


@pytest.mark.parametrize("case", ["alone", "with another method", "after a rest"])
def test_what_was_drafted_ahead_is_there_at_once(case: str, clock: Clock) -> None:
    """Also where the round before committed more tokens than it found right in the chain."""
    link = Link()
    table = Table(link)
    table.warm()
    if case == "alone":
        table.round(8)
    elif case == "with another method":
        table.sequence.commit([4, 8])
        table.observe(TokenTree(7), [], [4, 8])
    else:
        table.round(8)
        table.answer(link)
        for token in (3, 4):
            table.round(token, table.propose(10), wanted=False)
        table.round(8)
    table.answer(link, (1, 2, 3))
    tree = table.propose(10)
    assert tree.ids == [8, 1, 2, 3]
    ids = table.sequence.ids
    path_hash = fence.extend(fence.extend(fence.EMPTY, ids), [1, 2, 3])
    key = RoundKey(base=len(ids), path_hash=path_hash, accepted=1, bonus=9)
    table.proposer.news.arrived(Arrival(session=1, incarnation=1, key=key, ids=(11, 12)))
    table.sequence.commit([1, 9])
    table.observe(tree, [1], [1, 9])
    assert link.verifying[-1] == 2, "the drafter goes on from it"
    assert table.proposer.ready(table.sequence, clock.now)
    assert table.propose(10).ids == [9, 11, 12]


def test_a_branch_that_went_ahead_of_the_first_id_is_taken(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    assert link.ahead == [Wish(3, table.proposer.fanout)]
    table.warm()
    for bonus in (8, 9):
        key = RoundKey(
            base=3, path_hash=fence.extend(fence.EMPTY, (5, 6, 7)), accepted=0, bonus=bonus
        )
        table.proposer.news.arrived(Arrival(session=1, incarnation=1, key=key, ids=(bonus, 2, 3)))
    table.round(9)
    assert link.verifying == [3]
    assert table.propose(10).ids == [9, 9, 2, 3]
    assert table.proposer.news.stale == 0


@pytest.mark.parametrize(("draft_tokens", "most"), [(0, 8), (3, 3)])
def test_a_branch_that_went_ahead_is_no_longer_than_was_asked_for(
    draft_tokens: int, most: int, clock: Clock
) -> None:
    """Whatever a drafter sends; it hears how much of it is checked."""
    link = Link()
    table = Table(link, draft_tokens=draft_tokens)
    table.warm()
    key = RoundKey(base=3, path_hash=fence.extend(fence.EMPTY, (5, 6, 7)), accepted=0, bonus=9)
    ahead = Arrival(session=1, incarnation=1, key=key, ids=tuple(range(100)))
    table.proposer.news.arrived(ahead)
    table.round(9)
    assert link.verifying == [most]
    assert table.propose(250).ids == [9, *range(most)]


def test_a_branch_that_is_waited_for_is_no_longer_than_was_asked_for(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    table.round(8)
    table.answer(link, tuple(range(100)))
    assert table.propose(250).ids == [8, 0, 1, 2]


def test_no_more_is_asked_for_than_there_is_room_for(clock: Clock) -> None:
    link = Link()
    table = Table(link, draft_tokens=500)
    table.warm()
    table.round(8)
    assert [wish.draft_tokens for wish in (*link.ahead, *link.wishes)] == [199, 198]


def test_of_two_branches_for_one_outcome_the_later_counts(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    key = RoundKey(base=3, path_hash=fence.extend(fence.EMPTY, (5, 6, 7)), accepted=0, bonus=9)
    for ids in ((1, 2, 3), (11, 12, 13)):
        table.proposer.news.arrived(Arrival(session=1, incarnation=1, key=key, ids=ids))
    table.round(9)
    assert table.propose(10).ids == [9, 11, 12, 13]


@pytest.mark.parametrize(("bonus", "verifying"), [(63, 3), (64, 0)])
def test_of_what_comes_ahead_without_end_little_is_kept(
    bonus: int, verifying: int, clock: Clock
) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    for each in range(65):
        key = RoundKey(
            base=3, path_hash=fence.extend(fence.EMPTY, (5, 6, 7)), accepted=0, bonus=each
        )
        table.proposer.news.arrived(Arrival(session=1, incarnation=1, key=key, ids=(1, 2, 3)))
    assert table.proposer.news.stale == 1
    table.round(bonus)
    assert link.verifying == [verifying]


def test_where_another_method_went_on_the_branch_for_that_bonus_is_not_taken(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    table.round(8)
    table.answer(link, (1, 2, 3))
    tree, ids = table.propose(10), table.sequence.ids
    path_hash = fence.extend(fence.extend(fence.EMPTY, ids), [1, 2, 3])
    key = RoundKey(base=len(ids), path_hash=path_hash, accepted=0, bonus=9)
    table.proposer.news.arrived(Arrival(session=1, incarnation=1, key=key, ids=(11, 12)))
    other = tree.add(0, 4)
    table.sequence.commit([4, 9])
    table.observe(tree, [other], [4, 9])
    assert link.verifying[-1] == 0


@pytest.mark.parametrize(("top_k", "most"), [(0, 32), (5, 5), (1000, 32)])
def test_under_rejection_tokens_are_drawn_from_few_and_with_noise_of_their_own(
    top_k: int, most: int, clock: Clock
) -> None:
    link = Link()
    table = Table(link, acceptance="rejection", top_k=top_k)
    (sampling,), own = link.samplings, table.sequence.request.sampling
    assert sampling == replace(own, top_k=most, seed=sampling.seed)
    assert sampling.seed != own.seed


def test_under_the_coupled_rule_tokens_are_drawn_as_the_text_is(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    assert link.samplings == [table.sequence.request.sampling]


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_draft_ends_where_it_costs_more_than_it_brings_unless_a_length_was_asked_for(
    draft_tokens: int, clock: Clock
) -> None:
    link = Link()
    link.checked(32, 8, 6)
    table = Table(link, draft_tokens=draft_tokens, row_s=2e-4)
    table.warm()
    table.round(8)
    for wish in (*link.ahead, *link.wishes):
        assert wish.draft_tokens == (draft_tokens or table.proposer.draft_tokens)
        assert any(wish.least) == (draft_tokens == 0)
        assert wish.fanout == table.proposer.fanout


def test_nothing_is_wished_for_ahead_where_others_fill_the_time(clock: Clock) -> None:
    link = Link()
    table = Table(link, draft_tokens=0, row_s=1e-5)
    table.warm()
    table.round(8)
    assert link.wishes[-1].fanout == 2
    table.proposer._pairing.texts = lambda: 8
    table.round(8)
    assert link.wishes[-1].draft_tokens
    assert link.wishes[-1].fanout == 0


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_drafter_whose_processors_passes_take_waits_for_the_outcome(
    draft_tokens: int, clock: Clock
) -> None:
    for near, fanout in ((True, 0), (False, 2)):
        link = Link(near=near)
        table = Table(link, draft_tokens=draft_tokens)
        table.warm()
        table.round(8)
        assert {wish.fanout for wish in (*link.ahead, *link.wishes)} == {fanout}


def test_news_of_a_text_that_is_over_is_no_fault(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    table.round(8)
    table.proposer.close(table.sequence)
    table.answer(link)
    assert table.proposer.news.stale == 0


def test_a_branch_is_used_once(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    table.round(8)
    table.answer(link)
    assert table.proposer.ready(table.sequence, clock.now)
    assert table.propose(10).ids == [8, 1, 2, 3]
    assert table.propose(10).ids == [8]


@pytest.mark.parametrize("change", ["base", "path_hash", "accepted", "bonus", "incarnation"])
def test_any_other_key_is_stale(change: str, clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    table.round(7)
    table.round(8)
    arrival = Arrival(session=1, incarnation=1, key=link.asked[-1][0], ids=(1,))
    if change == "incarnation":
        arrival = arrival._replace(incarnation=2)
    else:
        other = getattr(arrival.key, change) + 1
        arrival = arrival._replace(key=arrival.key._replace(**{change: other}))
    table.proposer.news.arrived(arrival)
    assert table.proposer.news.stale == 1
    assert not table.proposer.ready(table.sequence, clock.now)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_senseless_branch_counts_as_none(ahead: bool, clock: Clock) -> None:
    """Where it is waited for, and where it came ahead of its outcome."""

    class Senseless(Arrival):
        def find(self, accepted: int, bonus: int) -> Branch | None:
            raise ValueError("senseless")

    link = Link()
    table = Table(link)
    table.warm()
    table.round(8)
    key = link.asked[-1][0]
    tree = None
    if ahead:
        table.answer(link)
        tree = table.propose(10)
        ids = table.sequence.ids
        path_hash = fence.extend(fence.extend(fence.EMPTY, ids), [1, 2, 3])
        key = RoundKey(base=len(ids), path_hash=path_hash, accepted=0, bonus=9)
    table.proposer.news.arrived(Senseless(session=1, incarnation=1, key=key, ids=(1,)))
    if ahead:
        table.round(9, tree)
        assert link.verifying[-1] == 0
    assert table.proposer.news.stale == 1
    assert not table.proposer.ready(table.sequence, clock.now)


def test_late_branches_teach_patience(clock: Clock) -> None:
    """The way grows from 4 to 60 ms: branches are late at first, then waited for again."""
    link = Link()
    table = Table(link)
    table.warm()
    in_time = []
    for turn in range(80):
        way_s = 0.004 if turn < 20 else 0.060
        table.round(8)
        asked, arrived = clock.now, False
        while not table.proposer.ready(table.sequence, clock.now):
            clock.now += 0.001
            if clock.now - asked >= way_s and not arrived:
                table.answer(link)
                arrived = True
        in_time.append(arrived)
        table.round(9, table.propose(10))
        if not arrived:
            clock.now = asked + way_s
            late = Arrival(session=1, incarnation=1, key=link.asked[-2][0], ids=(1,))
            table.proposer.news.arrived(late)
    assert all(in_time[:20])
    assert not in_time[20]
    assert all(in_time[-20:])


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_late_branch_tells_how_long_so_many_tokens_take(rounds: int, clock: Clock) -> None:
    """Eight are wanted, one is sure enough; the first round's key is that of what went ahead of
    it, too."""
    link = Link()
    table = Table(link, draft_tokens=8)
    table.warm()
    for _ in range(rounds):
        table.round(8)
    learnt: list[tuple[int, float]] = []
    link.clock.answered = lambda tokens, seconds, **_: learnt.append((tokens, seconds))  # type: ignore[method-assign]
    clock.now += 10
    table.round(9, table.propose(10))
    late = Arrival(session=1, incarnation=1, key=link.asked[-2][0], ids=(1,))
    table.proposer.news.arrived(late)
    assert learnt == [(1, pytest.approx(10.0))]
    assert table.proposer.news.stale == 1


def test_no_draft_is_wished_for_where_another_method_rests_the_drafter(clock: Clock) -> None:
    first, second = Link(), Link()
    table = Table(first, second)
    table.warm()
    first.alive = False
    table.proposer.news.lost(first)
    table.round(8, wanted=False)
    assert (first.ahead, second.ahead) == ([Wish(3, 2)], [Wish()])


def test_drafters_that_refuse_are_left_alone_for_a_while(clock: Clock) -> None:
    first, second = Link(), Link()
    table = Table(first, second)
    for turn in range(1, 30):
        table.proposer.news.dropped(1, turn)
        table.round(8)
        clock.now += 0.01
    assert (len(first.opened), len(second.opened)) == (1, 1)
    clock.now += 60
    table.round(9)
    assert len(first.opened) == 2
    assert first.opened[-1][2] == table.sequence.ids, (
        "a new mirror starts from all that is committed"
    )


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_where_drafts_do_not_pay_nobody_is_mirrored(draft_tokens: int, clock: Clock) -> None:
    """But who asks for drafts of some length has them."""
    link = Link()
    table = Table(link, draft_tokens=draft_tokens)
    table.proposer._gate = Found(pays=False)
    request = replace(table.sequence.request, request_id="s")
    other = Sequence(request, lambda event: None, KvLease(BlockManager(4, 16)), ticket=2)
    table.proposer.open(other)
    assert len(link.opened) == 1 + (draft_tokens > 0)
    table.proposer._gate = Found(pays=True)
    table.sequence = other
    table.round(8)
    assert len(link.opened) == 2, "it is mirrored once drafts pay"


@pytest.mark.parametrize("warm", [False, True])
def test_where_drafts_no_longer_pay_a_mirror_ends_soon(warm: bool, clock: Clock) -> None:
    """One that follows the text costs little, and may be needed again at once: it ends later."""
    link = Link()
    known(link)
    table = Table(link, draft_tokens=0)
    if warm:
        table.warm()
    table.proposer._gate = Found(pays=False)
    rounds = 0
    while not link.closed:
        table.round(8)
        rounds += 1
    assert rounds == (session.MOST_UNTOLD if warm else 1)
    table.round(9)
    assert (len(link.opened), link.meter.sessions) == (1, 0)
    table.proposer._gate = Found(pays=True)
    table.round(10)
    assert link.opened[-1] == (1, 2, table.sequence.ids)


def test_a_text_rests_beside_its_mirror_where_drafts_no_longer_pay(clock: Clock) -> None:
    """Passes of all texts are one call then; what they bring is told later, as one round."""
    link = Link()
    known(link)
    table = Table(link, draft_tokens=0)
    table.warm()
    table.round(8)
    assert not table.proposer.rests(table.sequence), "a draft is on its way"
    table.proposer._gate = Found(pays=False)
    table.answer(link)
    assert not table.proposer.rests(table.sequence), "the round that checks it is timed"
    table.round(9, table.propose(10))
    assert table.proposer.rests(table.sequence)
    timed = link.meter._timed_rounds
    tree = table.propose(10)
    table.sequence.commit([10, 11, 12])
    table.observe(tree, [], [10, 11, 12], wanted=False)
    assert table.proposer.rests(table.sequence)
    assert link.meter._timed_rounds == timed, "several passes in one call are no round of a drafter"
    table.proposer._gate = Found(pays=True)
    table.round(13, table.propose(10))
    assert not table.proposer.rests(table.sequence)
    assert [token for told in link.told for token in told] == [8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_text_rests_that_no_drafter_can_be_had_for(draft_tokens: int, clock: Clock) -> None:
    """Though drafts would pay: a lost drafter, or one that gave it up, has none."""
    first, second = Link(), Link()
    table = Table(first, second, draft_tokens=draft_tokens)
    table.proposer._gate = Found(pays=True)
    for _ in range(2):
        assert not table.proposer.rests(table.sequence)
        for link in (first, second):
            link.alive = False
            table.proposer.news.lost(link)
        assert table.proposer.rests(table.sequence)
        table.round(8)
        assert table.proposer.rests(table.sequence)
        second.alive = True
        assert not table.proposer.rests(table.sequence)
        table.round(9)
        table.proposer.news.dropped(1, len(first.opened) + len(second.opened))
        assert table.proposer.rests(table.sequence), "it is not to be asked again"
        clock.now += 60
    assert (len(first.opened), len(second.opened)) == (1, 2)


def test_a_window_with_drafts_waits_for_no_text_that_is_to_have_none(clock: Clock) -> None:
    link = Link()
    known(link)
    table = Table(link, draft_tokens=0)
    gate = table.proposer._gate = Found(pays=True)
    table.round(8)
    assert gate._joined == 0, "its mirror is cold"
    table.warm()
    table.round(9)
    assert gate._joined == 0, "a draft is on its way"
    table.answer(link)
    table.propose(10)
    assert gate._joined == 1
    for _ in range(40):
        link.clock.answered(4, 0.01)
    table.sequence.commit([10])
    table.observe(TokenTree(9), [], [10])
    while link.wishes[-1].draft_tokens:
        table.round(11)
    assert gate._joined > 1


def known(link: Link, answer_s: float = 0.0005) -> None:
    """Others have had drafts of it; where answers take ten milliseconds, none pays."""
    for kind in (SHORT, DRAWN):
        link.checked(40, 4, 2, kind)
    for _ in range(40):
        link.clock.answered(4, answer_s)


def test_a_drafter_that_is_too_far_away_for_any_text_is_probed_now_and_then(clock: Clock) -> None:
    """For a small share of the time: its mirrors and drafts would slow every text down."""
    link = Link()
    known(link, answer_s=0.010)
    table = Table(link, draft_tokens=0)
    table.proposer.close(table.sequence)
    assert len(link.opened) == 1, "the first is a probe"
    began, opened, texts = clock.now, 0, 0
    while clock.now < began + 64:
        before = len(link.opened)
        request = replace(table.sequence.request, request_id=str(texts))
        other = Sequence(request, lambda event: None, KvLease(BlockManager(4, 16)), ticket=texts)
        table.proposer.open(other)
        opened += len(link.opened) - before
        table.proposer.close(other)
        clock.now += 0.1
        texts += 1
    assert link.clock.cost.at(1) == pytest.approx(0.004)
    assert 70 <= opened <= 80, "a round of 4 ms is half a percent of 0.8 s"
    assert texts >= 640


def test_drafts_that_are_asked_for_by_length_do_not_say_that_they_pay(clock: Clock) -> None:
    """Else other texts would probe a drafter that is far away as if it had just been near."""
    link = Link()
    known(link, answer_s=0.010)
    intervals = []
    for _ in range(2):
        table = Table(link, draft_tokens=3)
        mirror = table.proposer._sessions[table.sequence].mirror
        assert mirror is not None
        assert mirror.link is link
        link.clock.probed(clock.now, 0.004)
        intervals.append(link.clock.probe_at - clock.now)
    assert intervals == pytest.approx([0.05, 0.1])


@pytest.mark.parametrize(("answer_s", "asked"), [(0.010, [0]), (0.0008, [0, 1, 2, 3])])
def test_a_probe_ends_with_its_first_answer_where_that_is_slow(
    answer_s: float, asked: list[int], clock: Clock
) -> None:
    """A quick drafter's are tried, though never yet right. In vain, and the text leaves it."""
    link = Link()
    known(link, answer_s=0.010)
    link.checked(400, 4, 0)
    table = Table(link, draft_tokens=0)
    table.warm()
    asks = []
    for turn in range(45):
        table.round(8, table.propose(10))
        if link.asked[-1][1] and not link.closed:
            asks.append(turn)
            clock.now += answer_s
            table.answer(link, (3,) * link.asked[-1][1])
        clock.now += 0.001
    assert asks == asked
    assert link.closed == 1


def test_a_session_leaves_a_drafter_that_has_become_too_slow(clock: Clock) -> None:
    link = Link()
    table = Table(link, draft_tokens=0)
    table.warm()
    known(link, answer_s=0.010)
    link.clock.probed(clock.now, 0.010)
    rounds = 0
    while not link.closed and rounds < 100:
        table.round(8, table.propose(10))
        rounds += 1
        if link.asked[-1][1] and not link.closed:
            clock.now += 0.010
            table.answer(link, (3,) * link.asked[-1][1])
    assert rounds < 100
    for _ in range(20):
        table.round(9)
    assert len(link.opened) == 1, "and does not come back at once"
    clock.now += 3
    known(link, answer_s=0.0001)
    table.round(9)
    assert len(link.opened) == 2
    table.warm(incarnation=2)
    table.round(9)
    assert link.asked[-1][1] > 0


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_drafts_that_tell_what_they_were_drawn_from_have_a_cost_of_their_own(
    acceptance: str, clock: Clock
) -> None:
    """They take longer: else one that wants them would end the drafts of others."""
    link = Link()
    known(link, answer_s=0.0001)
    for _ in range(32):
        link.drawing.answered(3, 0.010)
    link.drawing.probe_at = clock.now + 1
    Table(link, draft_tokens=0, acceptance=acceptance)
    assert len(link.opened) == (0 if acceptance == "rejection" else 1)


@pytest.mark.parametrize("right_where", ["short", "long"])
def test_texts_of_one_length_decide_nothing_for_those_of_another(
    right_where: str, clock: Clock
) -> None:
    """Else one long text, behind which a drafter is wrong, would end the drafts of short ones."""
    kinds = {"short": SHORT, "long": TextKind(length=2)}
    for name, tokens in (("short", 300), ("long", 1500)):
        link = Link()
        for where, kind in kinds.items():
            link.checked(40, 4, 4 if where == right_where else 0, kind)
            known = link.known.of(kind)
            for _ in range(40):
                known.clock.answered(4, 0.0005)
            known.clock.probe_at = clock.now + 1
        Table(link, draft_tokens=0, row_s=4e-4, prompt_tokens=tokens)
        assert len(link.opened) == (name == right_where)


def test_what_is_foretold_is_of_the_texts_at_hand(clock: Clock) -> None:
    """Of a length that nobody knows one text finds out, though others are known."""
    link = Link()
    long = TextKind(length=2)
    link.checked(400, 4, 0, long)
    for _ in range(40):
        link.known.of(long).clock.answered(4, 0.005)
    first = Table(link, prompt_tokens=1500, row_s=4e-4)
    pairing = first.proposer._pairing
    assert (pairing.acquainted(long), pairing.acquainted(SHORT)) == (True, False)
    assert pairing.foretell(2) is False
    first.round(8)
    short = _another(first, 1)
    first.proposer.open(short)
    assert short in first.proposer._scouts
    link.checked(40, 4, 4)
    for _ in range(400):
        link.clock.answered(4, 0.0001)
    assert pairing.foretell(2) is None


def test_a_drafter_that_says_nothing_does_so_to_texts_of_all_lengths(clock: Clock) -> None:
    link = Link()
    table = Table(link, prompt_tokens=511)
    for _ in range(100):
        link.clock.answered(3, 0.004)
    for at in range(4):
        link.clock.silence.missed(at, at + 0.5)
    table.round(8)
    later = link.known.of(TextKind(length=1)).clock
    assert later.silence.paused(3.6)
    assert later.cost.at(3) == pytest.approx(0.004), "as fast as to those before it, at first"
    later.answered(3, 0.1)
    assert link.clock.cost.at(3) == pytest.approx(0.004)


def test_a_text_is_judged_by_its_length_so_far(clock: Clock) -> None:
    link = Link()
    table = Table(link, prompt_tokens=500)
    table.warm()
    for token in range(8, 28):
        table.round(token)
        clock.now += 0.001
        table.answer(link)
    assert set(link.known._of) == {SHORT, TextKind(length=1)}


def test_a_probe_asks_for_no_more_than_seems_best(clock: Clock) -> None:
    """Nor does it leave the end of a draft to a drafter that was sure and wrong."""
    link = Link()
    known(link)
    link.checked(400, 4, 0)
    table = Table(link, draft_tokens=0, row_s=4e-4)
    table.warm()
    table.round(8)
    assert link.wishes[-1] == Wish(1, 2)


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_an_answer_teaches_of_answers_like_it(acceptance: str, clock: Clock) -> None:
    link = Link()
    table = Table(link, acceptance=acceptance)
    table.warm()
    table.round(8)
    clock.now += 0.01
    table.answer(link)
    taught = {"coupled": link.clock, "rejection": link.drawing}
    known = {name for name, each in taught.items() if each.round_trip_s is not None}
    assert known == {acceptance}


def test_what_to_ask_for_hangs_on_the_answers_of_its_kind(clock: Clock) -> None:
    links = {}
    for acceptance in ("coupled", "rejection"):
        link = links[acceptance] = Link()
        known(link, answer_s=0.0001)
        for _ in range(40):
            link.drawing.answered(4, 0.0001)
        table = Table(link, draft_tokens=0, acceptance=acceptance)
        table.warm()
        for _ in range(200):
            link.drawing.answered(4, 0.010)
        table.round(8)
    asked = {name: sum(tokens for _, tokens in link.asked) for name, link in links.items()}
    assert asked["coupled"] > 0
    assert asked["rejection"] == 0


def test_a_drafter_that_was_always_ahead_may_pay_beside_others(clock: Clock) -> None:
    """How long its answers take is not known then."""
    link = Link()
    table = Table(link)
    link.checked(16, 3, 3)
    assert table.proposer._pairing.acquainted(SHORT)
    assert table.proposer._pairing.foretell(2) is None


@pytest.mark.parametrize(("round_s", "drafts"), [(0.0011, True), (0.0029, False)])
def test_rounds_that_take_longer_than_expected_end_drafting(
    round_s: float, drafts: bool, clock: Clock
) -> None:
    """Two tokens a round, answers at once, steps of a millisecond: it would seem to pay."""
    link = Link()
    table = Table(link, draft_tokens=0)
    table.warm()
    drafted = []
    for _ in range(90):
        if link.asked and link.asked[-1][1] and not link.closed:
            table.answer(link, (4,) * link.asked[-1][1])
        tree = table.propose(10)
        drafted.append(len(tree) > 1)
        clock.now += round_s if drafted[-1] else 0.001
        taken = [4, 9] if drafted[-1] else [9]
        table.sequence.commit(taken)
        table.observe(tree, [1] if drafted[-1] else [], taken)
    assert sum(drafted[1:9]) == 8
    assert (sum(drafted[-20:]) > 15) == drafts
    assert (sum(drafted[-20:]) < 5) == (not drafts)


def test_rounds_whose_drafts_ended_early_took_what_was_expected(clock: Clock) -> None:
    link = Link()
    link.checked(32, 8, 7)
    link.clock.slowness = 1.5
    table = Table(link, draft_tokens=0, row_s=1e-4)
    table.warm()
    for _ in range(120):
        if link.asked and link.asked[-1][1]:
            table.answer(link, (4, 4))
        tree = table.propose(10)
        clock.now += table.proposer.cost.round_s(len(tree) - 1)
        taken = [4, 4, 9] if len(tree) > 1 else [9]
        table.sequence.commit(taken)
        table.observe(tree, list(range(1, len(tree))), taken)
    assert link.clock.slowness == pytest.approx(1.0, abs=0.02)


def test_a_lost_drafter_is_followed_by_the_next(clock: Clock) -> None:
    first, second = Link(), Link()
    table = Table(first, second)
    table.warm()
    table.round(8)
    first.alive = False
    assert table.proposer.ready(table.sequence, clock.now)
    table.proposer.news.lost(first)
    table.round(9)
    assert second.opened == [(1, 2, [5, 6, 7, 8, 9])]
    table.proposer.close(table.sequence)
    assert (first.closed, second.closed) == (0, 1)


def test_rounds_are_counted_and_timed_for_their_drafter(clock: Clock) -> None:
    """Steps of 10 ms after waits of 5 ms, and two tokens a round."""
    link = Link()
    table = Table(link, draft_tokens=0, step_s=0.010)
    table.warm()
    assert link.meter.sessions == 1
    table.round(8)
    for _ in range(60):
        if link.asked[-1][1]:
            clock.now += 0.005
            answer = Arrival(
                session=1,
                incarnation=1,
                key=link.asked[-1][0],
                ids=(4,) * link.asked[-1][1],
                came_at=clock.now - 0.002,
            )
            table.proposer.news.arrived(answer)
        tree = table.propose(10)
        clock.now += 0.010
        taken = [4, 9] if len(tree) > 1 else [9]
        table.sequence.commit(taken)
        table.observe(tree, [1] if len(tree) > 1 else [], taken)
    assert 16 <= link.meter.rounds <= 60
    assert link.meter.accepted_tokens == link.meter.rounds
    assert link.meter.gain == pytest.approx(2 * 10 / 15)
    assert table.proposer.wait.at(clock.now) == pytest.approx(0.005)
    answer_s = link.meter.round_trip_s + 8 * link.meter.token_s
    for seconds in (answer_s, link.clock.cost.at(8)):
        assert seconds == pytest.approx(0.003), "by when it came, not when it was seen"
    table.proposer.close(table.sequence)
    assert link.meter.sessions == 0


@pytest.mark.parametrize(("taken", "right"), [([1, 2], True), ([1, 9], False)])
def test_of_a_draft_nothing_is_judged_that_stands_behind_the_text_s_end(
    taken: list[int], right: bool, clock: Clock
) -> None:
    link = Link()
    table = Table(link)
    table.warm()
    table.round(8)
    table.answer(link)
    tree = table.propose(10)
    assumed = table.proposer._pairing.acceptance.rate
    table.sequence.commit(taken)
    table.sequence.finished = FinishReason.STOP
    table.observe(tree, [1, 2] if right else [1], taken)
    assert (link.meter.drafted_tokens, link.meter.accepted_tokens) == (3, 1 + right)
    assert link.meter.acceptance == (1.0 if right else pytest.approx(1 / 3))
    assert (table.proposer._pairing.acceptance.rate > assumed) == right


def test_a_lost_drafter_has_no_sessions(clock: Clock) -> None:
    first, second = Link(), Link()
    table = Table(first, second)
    first.alive = False
    table.proposer.news.lost(first)
    assert (first.meter.sessions, second.meter.sessions) == (0, 0)
    table.round(8)
    assert (first.meter.sessions, second.meter.sessions) == (0, 1)


def test_a_session_moves_to_a_drafter_that_is_known_to_be_better(clock: Clock) -> None:
    """Where drafts do not pay; and it does not come back at once."""
    poor, good = Link(alive=False), Link()
    table = Table(poor, good, draft_tokens=0)
    for _ in range(20):
        good.meter.timed(drafted=3, tokens=2, seconds=0.01, plain_s=0.01, now=clock.now)
    good.alive, poor.alive = False, True
    table.proposer.news.lost(good)
    table.round(8)
    good.alive = True
    table.warm(incarnation=2)
    for _ in range(60):
        if len(good.opened) > 1:
            break
        if poor.asked and poor.asked[-1][1]:
            key, wanted = poor.asked[-1]
            branch = Arrival(session=1, incarnation=2, key=key, ids=(3,) * wanted)
            clock.now += 0.010
            table.proposer.news.arrived(branch)
        table.round(9, table.propose(10))  # never is any of it right
    assert (len(poor.opened), poor.closed, len(good.opened)) == (1, 1, 2)
    assert (poor.meter.sessions, good.meter.sessions) == (0, 1)
    good.alive = False
    table.proposer.news.lost(good)
    for _ in range(5):
        table.round(9)
    assert len(poor.opened) == 1, "left for a while"


def test_a_session_stays_where_no_other_is_known_to_be_better(clock: Clock) -> None:
    poor, unknown = Link(), Link()
    table = Table(poor, unknown, draft_tokens=0)
    table.warm()
    rounds = 60
    for _ in range(rounds):
        if not table.proposer.ready(table.sequence, clock.now):
            clock.now += 0.010
            table.answer(poor, (3,) * poor.asked[-1][1])
        table.round(9, table.propose(10))
    assert sum(wanted > 0 for _, wanted in poor.asked) < rounds / 2, "drafts do not pay here"
    assert (poor.closed, unknown.opened) == (0, [])


@pytest.mark.parametrize(
    ("near", "slowness", "rounds", "foretold"),
    [
        (False, 1.0, 20, None),  # three texts with a draft of one token, in little more than a step
        (True, 1.0, 20, False),  # that drafter takes the processors of the texts
        (False, 1.6, 20, False),  # rounds take longer than their parts
        (False, 1.0, 2, False),  # nobody knows yet
    ],
)
def test_losses_beside_others_are_foretold(
    near: bool, slowness: float, rounds: int, foretold: bool | None
) -> None:
    link = Link(near=near)
    table = Table(link, step_s=0.001, row_s=0.0001)
    table.proposer._pairing.processors = 2
    table.proposer._pairing.texts = lambda: 3
    link.clock.slowness = slowness
    for _ in range(20):
        link.clock.answered(1, 0.0008)
    link.checked(rounds, 4, 3)
    assert table.proposer._pairing.foretell(3) is foretold


@pytest.mark.parametrize("answers", [False, True])
def test_scouts_find_out_what_an_unknown_drafter_is_worth(answers: bool, clock: Clock) -> None:
    """One text has drafts though the load leaves them off: until the drafter is known, or several
    have not made it so."""
    link = Link()
    table = Table(link, draft_tokens=0)
    table.proposer._gate = Found(pays=False)
    sequences = [table.sequence, *(_another(table, number) for number in range(7))]
    for sequence in sequences[1:]:
        table.proposer.open(sequence)
    assert len(link.opened) == 1
    assert not any(map(table.proposer.rests, sequences[:1]))
    assert all(map(table.proposer.rests, sequences[1:]))
    if answers:
        known(link)
        table.round(8)
        assert link.closed, "it leaves as others do"
    for sequence in [*sequences, *(_another(table, number) for number in range(7))]:
        if sequence not in sequences:
            table.proposer.open(sequence)
        table.proposer.close(sequence)
    assert len(link.opened) == (1 if answers else scouts._MOST)


def test_who_names_no_drafter_is_no_scout(clock: Clock) -> None:
    link = Link()
    table = Table(link, draft_tokens=0)
    table.proposer.close(table.sequence)
    table.proposer._gate = Found(pays=False)
    request = replace(table.sequence.request, drafters=())
    for ticket in range(2 * scouts._MOST):
        lonely = Sequence(request, lambda event: None, KvLease(BlockManager(4, 16)), ticket=ticket)
        table.proposer.open(lonely)
        table.proposer.close(lonely)
    before = len(link.opened)
    table.proposer.open(_another(table, 0))
    assert len(link.opened) == before + 1


def _another(table: Table, number: int, prompt_ids: tuple[int, ...] = (5, 6, 7)) -> Sequence:
    request = replace(table.sequence.request, request_id=str(number), prompt_ids=prompt_ids)
    return Sequence(request, lambda event: None, KvLease(BlockManager(4, 16)), ticket=2 + number)
