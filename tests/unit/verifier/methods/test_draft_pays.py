"""Whether drafts pay: for whom they are left off, and what is learnt of their worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from common.model.tree import TokenTree
from tests.inprocess import Arrival
from tests.unit.verifier.methods.draft_table import SHORT, Clock, Found, Link, Table
from verifier.drafting import session
from verifier.drafting.acquaintance import TextKind
from verifier.drafting.link import Wish
from verifier.sequence import FinishReason, Sequence


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
    link.known_well()
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
    link.known_well()
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
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_text_that_ends_before_a_draft_has_no_mirror(
    max_tokens: int, draft_tokens: int, clock: Clock
) -> None:
    """A prefill, and a trial or a scout, would be for nothing; also where it only becomes so."""
    first, second = Link(), Link()
    table = Table(first, second, draft_tokens=draft_tokens)
    table.proposer.close(table.sequence)
    first.opened.clear()
    request = replace(table.sequence.request, max_tokens=max_tokens)
    lease = KvLease(BlockManager(4, 16))
    table.sequence = short = Sequence(request, lambda event: None, lease, ticket=2)
    table.proposer.open(short)
    mirrored = max_tokens == 3
    assert len(first.opened) == mirrored
    assert (short in table.proposer._scouts) is mirrored
    assert table.proposer.rests(short) is not mirrored
    first.up = False
    table.proposer.news.lost(first)
    for token in range(8, 7 + max_tokens):
        table.round(token)
    assert second.opened == []


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_a_text_rests_that_no_drafter_can_be_had_for(draft_tokens: int, clock: Clock) -> None:
    """Though drafts would pay: a lost drafter, or one that gave it up, has none."""
    first, second = Link(), Link()
    table = Table(first, second, draft_tokens=draft_tokens)
    table.proposer._gate = Found(pays=True)
    for _ in range(2):
        assert not table.proposer.rests(table.sequence)
        for link in (first, second):
            link.up = False
            table.proposer.news.lost(link)
        assert table.proposer.rests(table.sequence)
        table.round(8)
        assert table.proposer.rests(table.sequence)
        second.up = True
        assert not table.proposer.rests(table.sequence)
        table.round(9)
        table.proposer.news.dropped(1, len(first.opened) + len(second.opened))
        assert table.proposer.rests(table.sequence), "it is not to be asked again"
        clock.now += 60
    assert (len(first.opened), len(second.opened)) == (1, 2)


def test_a_window_with_drafts_waits_for_no_text_that_is_to_have_none(clock: Clock) -> None:
    link = Link()
    link.known_well()
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


def test_others_may_try_something_once_no_text_is_left(clock: Clock) -> None:
    table = Table(Link())
    gate = table.proposer._gate = Found(pays=True)
    assert gate._crowd.take(gate, clock.now)
    assert not gate._crowd.take(object(), clock.now)
    table.proposer.close(table.sequence)
    assert gate._crowd.take(object(), clock.now)


def test_a_drafter_that_is_too_far_away_for_any_text_is_probed_now_and_then(clock: Clock) -> None:
    """For a small share of the time: its mirrors and drafts would slow every text down."""
    link = Link()
    link.known_well(answer_s=0.010)
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
    link.known_well(answer_s=0.010)
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
    link.known_well(answer_s=0.010)
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
    link.known_well(answer_s=0.010)
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
    link.known_well(answer_s=0.0001)
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
    link.known_well(answer_s=0.0001)
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
    short = first.another(1)
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
    link.known_well()
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
    known = {name for name, each in taught.items() if each.answer_s is not None}
    assert known == {acceptance}


def test_what_to_ask_for_hangs_on_the_answers_of_its_kind(clock: Clock) -> None:
    links = {}
    for acceptance in ("coupled", "rejection"):
        link = links[acceptance] = Link()
        link.known_well(answer_s=0.0001)
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
