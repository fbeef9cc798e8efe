"""The verifier's end of drafting: which branch counts, what is asked for, when to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common import fence
from common.model.tree import TokenTree
from tests.inprocess import Arrival
from tests.unit.verifier.methods.draft_table import Clock, Link, Table
from verifier.drafting.link import Branch, RoundKey, Wish


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


def test_whether_a_draft_is_to_come_is_known_as_a_round_ends(clock: Clock) -> None:
    """Not where there is no drafter, or one that is cold or left out."""
    link = Link()
    nobody, table = Table(), Table(link)
    nobody.round(8)
    assert not nobody.proposer.asked(nobody.sequence)
    for warm, wanted, asked in ((False, True, False), (True, True, True), (True, False, False)):
        if warm:
            table.warm()
        table.round(8, wanted=wanted)
        assert table.proposer.asked(table.sequence) is asked


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


def test_news_of_an_earlier_mirror_says_nothing_of_a_later_one(clock: Clock) -> None:
    link = Link()
    table = Table(link)
    table.warm(incarnation=0)
    table.round(8)
    assert link.asked[-1][1] == 0, "this mirror has not computed its prompt"
    table.warm()
    table.proposer.news.dropped(1, 0)
    table.round(9)
    table.answer(link, (1, 2, 3))
    assert table.propose(10).ids == [9, 1, 2, 3]


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
        arrival = replace(arrival, incarnation=2)
    else:
        other = getattr(arrival.key, change) + 1
        arrival = replace(arrival, key=arrival.key._replace(**{change: other}))
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
    first.up = False
    table.proposer.news.lost(first)
    table.round(8, wanted=False)
    assert (first.ahead, second.ahead) == ([Wish(3, 2)], [Wish()])
