"""Whose drafts a session has: drafters that are lost, that others are better than, unknown ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from tests.inprocess import Arrival
from tests.unit.verifier.methods.draft_table import Clock, Found, Link, Table
from verifier.drafting import scouts
from verifier.sequence import Sequence


def test_a_lost_drafter_is_followed_by_the_next(clock: Clock) -> None:
    first, second = Link(), Link()
    table = Table(first, second)
    table.warm()
    table.round(8)
    first.up = False
    assert table.proposer.ready(table.sequence, clock.now)
    table.proposer.news.lost(first)
    table.round(9)
    assert second.opened == [(1, 2, [5, 6, 7, 8, 9])]
    table.proposer.close(table.sequence)
    assert (first.closed, second.closed) == (0, 1)


def test_a_drafter_that_hangs_is_left_until_it_answers_again(clock: Clock) -> None:
    first, second = Link(), Link()
    table = Table(first, second)
    table.warm()
    for token in range(8, 11):
        assert first.hung_up == []
        clock.now += 2
        table.round(token)
        clock.now += 2
        table.propose(10)
    assert first.hung_up == ["it does not answer"]
    assert first.meter.sessions == 0
    table.round(11)
    assert second.opened == [(1, 2, table.sequence.ids)]
    assert first.closed == 0, "its stream ends with all that it mirrors"
    table.proposer.open(table.another(1))
    assert len(second.opened) == 2, "nor is it asked by a new text"
    clock.now += 2
    table.proposer.open(table.another(2))
    assert len(first.opened) == 2, "by its next stream it is"


def test_a_lost_drafter_has_no_sessions(clock: Clock) -> None:
    first, second = Link(), Link()
    table = Table(first, second)
    first.up = False
    table.proposer.news.lost(first)
    assert (first.meter.sessions, second.meter.sessions) == (0, 0)
    table.round(8)
    assert (first.meter.sessions, second.meter.sessions) == (0, 1)


def test_a_drafter_that_cannot_be_told_keeps_nothing_from_others(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = Link(), Link(), Link()
    table, told = Table(*links), []

    def flush(link: Link) -> None:
        told.append(link)
        if link is links[1]:
            raise OSError

    monkeypatch.setattr(Link, "flush", flush)
    table.proposer._pairing.touched.update(links)
    for _ in range(3):
        with suppress(OSError):
            table.proposer.flush()
    assert len(told) == len(links), "once each"
    assert {*told} == {*links}


def test_a_session_moves_to_a_drafter_that_is_known_to_be_better(clock: Clock) -> None:
    """Where drafts do not pay, once that one is there; and it does not come back at once."""
    poor, good = Link(up=False), Link()
    table = Table(poor, good, draft_tokens=0)
    for _ in range(20):
        good.meter.timed(drafted=3, tokens=2, seconds=0.01, plain_s=0.01, now=clock.now)
    good.up, poor.up = False, True
    table.proposer.news.lost(good)
    table.round(8)
    table.warm(incarnation=2)
    for turn in range(120):
        if turn == 60:
            assert poor.closed == 0, "a lost one is no better"
            good.up = True
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
    good.up = False
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
    sequences = [table.sequence, *(table.another(number) for number in range(7))]
    for sequence in sequences[1:]:
        table.proposer.open(sequence)
    assert len(link.opened) == 1
    assert not any(map(table.proposer.rests, sequences[:1]))
    assert all(map(table.proposer.rests, sequences[1:]))
    if answers:
        link.known_well()
        table.round(8)
        assert link.closed, "it leaves as others do"
    for sequence in [*sequences, *(table.another(number) for number in range(7))]:
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
    table.proposer.open(table.another(0))
    assert len(link.opened) == before + 1
