"""What is drafted before it is asked for: which outcomes, in what order, and answered once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from common import fence
from common.model.roll import Rolled
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from drafter.branch import Round
from drafter.config import EngineConfig
from drafter.engine import DraftEngine
from drafter.nodes import Node
from drafter.outlook import Chances
from drafter.reply import Reply
from drafter.sessions import Opening
from tests.inprocess import Pair
from tests.unit.drafter.by_hand import Verifier, check_slots, random_ids


def _ahead(replies: list[Reply], base: int, accepted: int) -> Reply:
    """The branch for the likeliest outcome with so many accepted tokens."""
    return next(
        reply
        for reply in replies
        if reply.round and (reply.round.base, reply.round.accepted) == (base, accepted)
    )


@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@pytest.mark.parametrize("seen", [True, False])
def test_an_outcome_that_was_foreseen_is_not_answered_twice(
    accepted: int, seen: bool, verifier: Verifier, judge: Pair
) -> None:
    """The branch went ahead of the outcome, though maybe it is still on its way."""
    text = random_ids(10)
    verifier.open(1, text)
    verifier.commit(1, 10, [5], wanted=3)
    ahead = _ahead(verifier.settle(), base=11, accepted=accepted)
    assert ahead.round is not None
    verifying = len(ahead.ids) if seen else 0
    ids, path_hash = list(ahead.round.ids), ahead.round.path_hash
    verifier.commit(1, 11, ids, wanted=3, path_hash=path_hash, verifying=verifying)
    further = verifier.settle()
    base = 11 + accepted + 1
    assert {reply.round.base for reply in further if reply.round} == {base}
    assert not any(reply.round.ids == tuple(ids) for reply in further if reply.round)
    after = _ahead(further, base=base, accepted=len(ahead.ids))
    assert after.round is not None
    assert after.round.ids[:-1] == ahead.ids
    written = [*after.round.ids, *after.ids]
    assert written == judge.generate([*text, 5, *ids], len(written))


@pytest.mark.usefixtures("thorough")
def test_the_next_id_of_an_opened_mirror_is_drafted_for(verifier: Verifier, judge: Pair) -> None:
    text = random_ids(70)
    verifier.open(1, text, wanted=3, fanout=2)
    warm, *ahead = verifier.settle()
    assert warm.warm == 70
    [first] = judge.generate(text, 1)
    rounds = {reply.ids: reply.round for reply in ahead if reply.round}
    assert {(r.base, r.path_hash, r.accepted) for r in rounds.values()} == {
        (70, fence.extend(fence.EMPTY, text), 0)
    }
    bonuses = [r.ids for r in rounds.values()]
    assert (first,) in bonuses
    assert len(bonuses) == 3, "the choice, and as many others as are wanted"
    verifier.commit(1, 70, [first], wanted=3, path_hash=fence.extend(fence.EMPTY, text))
    further = [reply.round for reply in verifier.settle() if reply.round]
    assert {r.base for r in further} == {71}, "what was sent is not sent again"


@pytest.mark.usefixtures("thorough")
@pytest.mark.parametrize("case", ["of another chain", "after another method went on", "of old"])
def test_an_outcome_that_looks_like_one_that_was_foreseen_is_answered(
    case: str, verifier: Verifier
) -> None:
    text = [*random_ids(10), 5]
    verifier.open(1, text[:10])
    verifier.commit(1, 10, [5], wanted=3)
    ended = _ahead(verifier.settle(), base=11, accepted=0).round
    assert ended is not None
    if case == "of another chain":
        ended = ended._replace(path_hash=ended.path_hash ^ 1)
    elif case == "after another method went on":
        ended = ended._replace(ids=(9, *ended.ids))
    else:
        verifier.commit(1, 11, [9], wanted=3, fanout=0)
        (answer,) = verifier.settle()
        path_hash = fence.extend(fence.EMPTY, [*text, 9, *answer.ids])
        ended = ended._replace(base=12, path_hash=path_hash)
    verifier.engine.sessions.commit(verifier.receive, 1, 1, ended, told_at=0.0)
    assert ended in [reply.round for reply in verifier.settle()]


def test_a_chain_cut_short_is_answered_though_its_end_was_drafted(verifier: Verifier) -> None:
    """The verifier checked two of three tokens; the third is its bonus: no outcome sent ahead."""
    verifier.open(1, random_ids(10))
    verifier.commit(1, 10, [5], wanted=3)
    replies = verifier.settle()
    answer, ahead = replies[1], _ahead(replies, base=11, accepted=3)
    verifier.commit(1, 11, list(answer.ids), wanted=2)
    again = verifier.settle()[0]
    assert ahead.round is not None
    assert again.round is not None
    assert again.round.base == 11
    assert again.ids == (ahead.round.ids[-1], ahead.ids[0])


@pytest.mark.usefixtures("thorough")
def test_what_is_drafted_already_leaves_room_for_what_the_verifier_waits_for(
    model: Runner,
) -> None:
    verifier = Verifier(DraftEngine(model, EngineConfig(scratch_tokens=34)))
    verifier.open(1, random_ids(10, 1))
    verifier.commit(1, 10, [5], wanted=8, fanout=3)
    answer = next(r for r in verifier.settle() if r.round and r.round.base == 10)
    verifier.commit(1, 11, [answer.ids[0]], wanted=32, fanout=0)
    assert [len(reply.ids) for reply in verifier.settle()] == [32]
    check_slots(verifier.engine, 34)
    verifier.engine.sessions.forget(verifier.receive)


def test_what_is_known_of_choices_is_of_others_of_their_kind(verifier: Verifier) -> None:
    for session, (temperature, drawn) in enumerate([(0.0, False), (0.9, False), (0.9, True)] * 2):
        sampling = SamplingParams(temperature=temperature)
        verifier.open(session % 3, random_ids(5), session, sampling, drawn=drawn)
        if session == 2:
            first = [mirror.chances for _, mirror in verifier.engine._mirrors.items()]
    again = [mirror.chances for _, mirror in verifier.engine._mirrors.items()]
    assert len({id(chances) for chances in first}) == 3
    assert [id(chances) for chances in again] == [id(chances) for chances in first]


def test_what_short_texts_have_shown_says_nothing_of_long_ones(verifier: Verifier) -> None:
    for session, length in enumerate((5, 511, 512)):
        verifier.open(session, random_ids(length))
    short, grown, long = (mirror for _, mirror in verifier.engine._mirrors.items())
    assert short.chances is grown.chances is not long.chances
    verifier.commit(1, 511, [5])
    assert short.chances is not grown.chances is long.chances


@pytest.mark.usefixtures("thorough")
def test_bonuses_are_guessed_for_every_place_where_the_chain_may_break(verifier: Verifier) -> None:
    verifier.open(1, random_ids(10))
    verifier.commit(1, 10, [5], wanted=3, fanout=2)
    outcomes = [r.round for r in verifier.settle() if r.round and r.round.base == 11]
    assert sorted({outcome.accepted for outcome in outcomes}) == [0, 1, 2, 3]
    assert sum(outcome.accepted == 0 for outcome in outcomes) == 2


@pytest.mark.usefixtures("thorough")
def test_the_likeliest_outcomes_go_ahead_in_a_first_wave(model: Runner) -> None:
    heard: list[list[Reply]] = []
    engine = DraftEngine(model, EngineConfig())
    engine.sessions.open(heard.append, 1, 1, Opening(random_ids(10), SamplingParams()))
    ended = Round(base=10, path_hash=7, accepted=0, ids=(5,), draft_tokens=4, fanout=3)
    engine.sessions.commit(heard.append, 1, 1, ended, told_at=0.0)
    while engine.step():
        pass
    engine.sessions.forget(heard.append)
    waves = [[r.round for r in replies if r.round and r.round.base == 11] for replies in heard]
    sizes = [len(wave) for wave in waves if wave]
    assert len(sizes) > 1
    assert max(sizes) == 4, "a wave, and the branch after the whole chain"
    keys = [(outcome.accepted, outcome.ids[-1]) for wave in waves for outcome in wave]
    assert len(keys) == len(set(keys)) == 5 * 3 + 1, "what is next best, and the choice at the end"


@pytest.mark.usefixtures("thorough")
def test_what_goes_ahead_is_the_same_where_news_comes_at_every_pass(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def branches() -> set[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        verifier.open(1, random_ids(10))
        verifier.commit(1, 10, [5], wanted=4, fanout=2)
        replies = verifier.settle()
        return {(r.round.base, r.round.ids, r.ids) for r in replies if r.round}

    undisturbed = branches()
    roll = Runner.roll

    def rung(runner: Runner, *args: Any) -> Rolled:
        verifier.engine.wake()
        return roll(runner, *args)

    monkeypatch.setattr(Runner, "roll", rung)
    assert branches() == undisturbed


def test_with_no_fanout_nothing_goes_ahead(verifier: Verifier) -> None:
    verifier.open(1, random_ids(10))
    verifier.commit(1, 10, [5], wanted=3, fanout=0)
    branches = [r for r in verifier.settle() if r.round is not None]
    assert [r.round.base for r in branches if r.round] == [10]


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_round_has_shown_is_counted_once(
    fails: bool, verifier: Verifier, judge: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot be, drafts come all the same."""
    counted: list[int] = []

    def observe(chances: Chances, chain: list[Node], root: Node, ids: Sequence[int]) -> None:
        counted.extend(ids)
        if fails:
            raise RuntimeError("boom")

    monkeypatch.setattr(Chances, "observe", observe)
    ids = random_ids(10)
    text = [*ids, *judge.generate(ids, 12)]

    def commit(at: int, chain: tuple[int, ...]) -> None:
        """The token after so many, in a round that checked a chain."""
        flight = fence.extend(fence.extend(fence.EMPTY, text[:at]), chain)
        verifier.commit(1, at, [text[at]], path_hash=flight, fanout=0)

    def answer() -> tuple[int, ...]:
        return verifier.settle()[-1].ids

    verifier.open(1, text[:11])
    verifier.settle()
    commit(11, ())
    for at in (12, 13, 14):
        commit(at, answer())
    chain = answer()
    commit(15, chain)
    commit(16, chain[1:])  # the rest of it is right so far
    assert answer()[0] == text[17]
    assert counted == text[11:17]
