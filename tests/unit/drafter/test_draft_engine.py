"""What the drafter's engine writes: the model's own text, as far as it is sure of it."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import accelerator, fence
from common.model.distribution import Distribution
from common.model.roll import Rolled
from common.model.runner import Runner
from common.model.tree import Drawn
from common.sampling_params import SamplingParams
from drafter import passes
from drafter.branch import Round
from drafter.config import EngineConfig
from drafter.engine import DraftEngine
from drafter.item import sent
from tests.inprocess import Pair
from tests.tiny_models import VOCAB
from tests.unit.drafter.by_hand import Verifier, check_done, check_slots, random_ids


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_drafts_are_what_the_model_would_write(seed: int, model: Runner, judge: Pair) -> None:
    """Over random rounds, some agreeing with the draft and some not, for several sessions."""
    draw = random.Random(seed)
    verifier = Verifier(DraftEngine(model, EngineConfig(max_batch_tokens=draw.choice([8, 64]))))
    samplings = [
        SamplingParams(
            temperature=draw.choice([0.0, 0.9]),
            top_k=draw.choice([0, 1, 20]),
            top_p=draw.choice([1.0, 0.8]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.2]),
            seed=draw.randrange(99),
        )
        for _ in range(3)
    ]
    texts = {s: random_ids(draw.randint(1, 60), draw.randrange(5)) for s in range(3)}

    def written(text: list[int], tokens: int, session: int) -> list[int]:
        return judge.generate(text, tokens, sampling=samplings[session])

    drafts: dict[int, tuple[int, ...]] = dict.fromkeys(texts, ())
    sent: dict[int, list[Round]] = {s: [] for s in texts}
    for session, ids in texts.items():
        verifier.open(
            session, ids, sampling=samplings[session], wanted=draw.randint(0, 3), fanout=2
        )
    if draw.random() < 0.5:
        for reply in verifier.settle():
            if reply.round is not None:
                sent[reply.session].append(reply.round)
                text = [*texts[reply.session], *reply.round.ids]
                assert list(reply.ids) == written(text, len(reply.ids), reply.session)
    for _ in range(4):
        wanted, fanout = draw.randint(1, 5), draw.randint(0, 2)
        least = draw.choice([(), (0.3,), (0.1, 0.7), (0.0, 0.2, 0.4, 0.9)])
        for session, ids in texts.items():
            right = drafts[session][: draw.randint(0, 4)]
            foreseen = {(o.accepted, o.ids[-1]) for o in sent[session]}
            bonuses = [t for t in range(3, VOCAB) if (len(right), t) not in foreseen]
            last = draw.choice(bonuses)
            path_hash = fence.extend(fence.EMPTY, [*ids, *drafts[session]])
            verifier.commit(
                session,
                len(ids),
                [*right, last],
                wanted,
                path_hash=path_hash,
                fanout=fanout,
                least=least,
            )
            ids.extend([*right, last])
        replies = [r for r in verifier.settle() if r.round is not None]
        for session, ids in texts.items():
            answer, *ahead = (r for r in replies if r.session == session)
            drafts[session] = answer.ids
            assert list(answer.ids) == written(ids, len(answer.ids), session)
            assert 1 <= len(answer.ids) <= wanted
            assert least or len(answer.ids) == wanted
            sent[session] = [r.round for r in ahead if r.round is not None]
            assert bool(ahead) == bool(fanout)
            for reply, outcome in zip(ahead, sent[session], strict=True):
                assert outcome.base == len(ids)
                assert outcome.path_hash == fence.extend(fence.EMPTY, [*ids, *answer.ids])
                assert outcome.ids[:-1] == answer.ids[: outcome.accepted]
                assert outcome.ids[-1] not in answer.ids[outcome.accepted :][:1]
                text = [*ids, *outcome.ids]
                assert list(reply.ids) == written(text, len(reply.ids), session)
                whole = outcome.accepted == len(answer.ids)  # its bonus is known a step later
                assert 1 <= len(reply.ids) <= wanted
                assert least or len(reply.ids) in (wanted, max(wanted - whole, 1))
            keys = {(outcome.accepted, outcome.ids[-1]) for outcome in sent[session]}
            assert len(keys) == len(ahead), "each outcome once"
    for session in texts:
        verifier.engine.sessions.close(verifier.receive, session, incarnation=1)
    model.pool.blocks.check()
    assert model.pool.blocks.held == 0


def test_branches_end_where_it_is_too_unlikely_that_they_are_right(verifier: Verifier) -> None:
    lengths = []
    for session, least in enumerate(((), (0.2,), (0.5,), (1.0,))):
        verifier.open(session, random_ids(10))
        verifier.commit(session, 10, [5], wanted=8, least=least)
        answer, *ahead = [reply.ids for reply in verifier.settle() if reply.round]
        lengths.append((len(answer), sum(map(len, ahead)) / len(ahead)))
    answers, others = zip(*lengths, strict=True)
    assert answers[0] == 8
    assert answers[-1] == 1, "the first is there in any case"
    assert list(answers) == sorted(answers, reverse=True)
    assert list(others) == sorted(others, reverse=True)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_of_which_nothing_is_sure_takes_one_step(
    temperature: float, verifier: Verifier
) -> None:
    sampling = SamplingParams(temperature=temperature)
    verifier.open(1, random_ids(10), sampling=sampling)
    verifier.settle()
    verifier.commit(1, 10, [5], wanted=8, fanout=0, least=(1.0,))
    verifier.engine.step()
    assert [len(reply.ids) for reply in verifier.replies] == [1]


def test_each_token_has_a_chance_of_its_own_to_fall_below(verifier: Verifier) -> None:
    for session in range(1, 7):
        verifier.open(session, random_ids(10, session))
        verifier.settle()
        sure = (0.0,) * session
        verifier.commit(session, 10, [5], wanted=8, fanout=2, least=(*sure, 1.0))
        lengths = [len(reply.ids) for reply in verifier.settle() if reply.round]
        assert lengths == [session] * len(lengths)
        assert len(lengths) > 1


def test_texts_drafted_for_in_one_call_end_each_where_it_is_said(verifier: Verifier) -> None:
    leasts: dict[int, tuple[float, ...]] = {1: (), 2: (1.0,), 3: (0.0, 0.0, 1.0), 4: (0.0,) * 99}
    for session in leasts:
        verifier.open(session, random_ids(10, session))
    verifier.settle()
    for session, least in leasts.items():
        verifier.commit(session, 10, [5], wanted=8, fanout=0, least=least)
    verifier.engine.step()
    answers = {reply.session: len(reply.ids) for reply in verifier.settle() if reply.round}
    assert answers == {1: 8, 2: 1, 3: 2, 4: 8}
    kept = [mirror.round.least for _, mirror in verifier.engine._mirrors.items() if mirror.round]
    assert max(map(len, kept)) == EngineConfig().max_draft_tokens, "no more than can matter"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("right", [(), (1.0,)])
def test_a_chance_that_is_none_ends_no_branch(
    wrong: float, right: tuple[float, ...], verifier: Verifier
) -> None:
    least = (*right, wrong)
    verifier.open(1, random_ids(10))
    verifier.commit(1, 10, [5], wanted=6, fanout=0, least=least)
    assert [len(reply.ids) for reply in verifier.settle() if reply.round] == [6]


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), wide=st.booleans(), wanted=st.sampled_from([3, 8, 32]))
@pytest.mark.usefixtures("thorough")
def test_whatever_a_verifier_makes_of_drafts_all_is_finished_and_no_slot_is_lost(
    seed: int, wide: bool, wanted: int, model: Runner
) -> None:
    """It takes branches whole or cut, is interrupted, asks for much, has little room, and forgets
    how its text began."""
    draw = random.Random(seed)
    config = EngineConfig(scratch_tokens=160 if wide else 34, context_tokens=draw.choice([0, 9]))
    verifier = Verifier(DraftEngine(model, config))
    engine, ids = verifier.engine, random_ids(draw.choice([5, 60]))
    sampling = SamplingParams(temperature=draw.choice([0.0, 0.0, 0.9]))
    verifier.open(1, list(ids), sampling=sampling, wanted=wanted, fanout=3)
    for _ in range(6):
        while draw.random() < 0.95 and engine.step():
            check_slots(engine, config.scratch_tokens)
            if draw.random() < 0.2:
                engine.wake()
        (_, mirror) = engine._mirrors.items()[0]
        chain = [node.token for node in mirror.chain]
        path_hash = fence.extend(mirror.text.path_hash, chain)
        sent = [reply for reply in verifier.replies if reply.round]
        foreseen = [reply for reply in sent if reply.round and reply.round.path_hash == path_hash]
        verifying = 0
        if foreseen and draw.random() < 0.6:
            taken = draw.choice(foreseen)
            assert taken.round is not None
            new, verifying = list(taken.round.ids), draw.randint(0, len(taken.ids))
        else:  # or less of the chain was checked than was sent
            right = chain[: draw.randint(0, len(chain))]
            new = [*right, draw.randrange(3, VOCAB)]
            path_hash = draw.choice([path_hash, fence.extend(mirror.text.path_hash, right)])
        verifier.replies.clear()
        verifier.commit(
            1,
            len(ids),
            new,
            wanted,
            path_hash=path_hash,
            verifying=verifying,
            fanout=draw.randint(0, 3),
            least=draw.choice([(), (0.2,), (0.5,), (0.95,), (0.0, 0.1, 0.6)]),
        )
        ids += new
        check_slots(engine, config.scratch_tokens)
    verifier.settle()
    check_done(engine)
    engine.sessions.forget(verifier.receive)
    assert model.pool.blocks.held == 0


@pytest.mark.parametrize("fanout", [0, 2])
def test_no_token_is_chosen_where_a_branch_has_ended_and_all_that_are_count(
    fanout: int, verifier: Verifier
) -> None:
    for session in (1, 2):
        verifier.open(session, random_ids(10, session))
    verifier.settle()
    before = verifier.engine.load().tokens
    for session in (1, 2):
        verifier.commit(session, 10, [5], wanted=8, fanout=fanout, least=(0.5,))
    branches = verifier.settle()
    chosen = sum(
        len(list(node.choices()))
        for _, mirror in verifier.engine._mirrors.items()
        for node in (mirror.root, *mirror.root.below())
    )
    assert verifier.engine.load().tokens - before == chosen > 0
    assert chosen <= sum(1 + len(reply.ids) for reply in branches), "one more tells the end"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("pass_s", [1e-6, 1.0])
def test_a_branch_takes_one_call_however_its_tokens_are_chosen(
    temperature: float,
    penalty: float,
    pass_s: float,
    verifier: Verifier,
    model: Runner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And however long a pass takes."""
    if not model.rolls:
        pytest.skip("one token a call")
    calls, forward, roll = [], Runner.forward, Runner.roll
    monkeypatch.setattr(Runner, "forward", lambda *args: calls.append("one") or forward(*args))
    monkeypatch.setattr(Runner, "roll", lambda *args: calls.append("several") or roll(*args))
    sampling = SamplingParams(temperature=temperature, repetition_penalty=penalty, seed=3)
    verifier.open(1, random_ids(10), sampling=sampling)
    verifier.commit(1, 10, [4], wanted=4, fanout=0)
    verifier.settle()
    verifier.engine._passes.pass_s = pass_s
    calls.clear()
    before = verifier.engine.load().steps
    verifier.commit(1, 11, [5], wanted=4, fanout=0)
    assert [len(reply.ids) for reply in verifier.settle()] == [4]
    assert calls == ["several"]
    assert verifier.engine.load().steps == before + 4, "each of them is a step as others know it"


def test_a_draw_that_compiled_code_is_not_sure_of_is_the_same(
    verifier: Verifier, model: Runner, judge: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were never sure: of the first token of a call, or of a later one."""
    if not model.rolls:
        pytest.skip("one token a call")
    roll, unsure = Runner.roll, 0

    def doubtful(runner: Runner, *args: Any) -> Rolled:
        nonlocal unsure
        rolled = roll(runner, *args[:1], args[1][: unsure % 2], *args[2:])
        unsure += 1
        rolled.ids[-1] = -1
        return rolled

    monkeypatch.setattr(Runner, "roll", doubtful)
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=3)
    verifier.open(1, random_ids(10), sampling=sampling)
    verifier.settle()
    verifier.engine._passes.pass_s = 1e-6
    verifier.commit(1, 10, [5], wanted=6, fanout=2)
    answer, *_ = (reply for reply in verifier.settle() if reply.round)
    assert list(answer.ids) == judge.generate([*random_ids(10), 5], 6, sampling=sampling)
    assert unsure > 3
    check_slots(verifier.engine, len(next(iter(verifier.engine._mirrors.items()))[1].scratch.slots))


def test_draws_come_with_what_they_were_drawn_from(verifier: Verifier) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=8, seed=5)
    verifier.open(1, random_ids(10), sampling=sampling, drawn=True)
    verifier.commit(1, 10, [5], wanted=4)
    branches = [r for r in verifier.settle() if r.round is not None]
    for branch in branches:
        assert len(branch.drawn) == len(branch.ids)
        for token, drawn in zip(branch.ids, branch.drawn, strict=True):
            assert len(drawn.ids) == 8
            assert token in drawn.ids
            assert sum(drawn.probabilities) == pytest.approx(1)


def test_draws_end_where_it_is_not_known_what_one_was_drawn_from(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for guesses, those before it would hang on what came after them."""
    count = 0

    def every_third_is_large(distribution: Distribution) -> Drawn | None:
        nonlocal count
        count += 1
        return sent(distribution) if count % 3 else None

    monkeypatch.setattr(passes, "sent", every_third_is_large)
    sampling = SamplingParams(temperature=1.0, top_k=8, seed=5)
    verifier.open(1, random_ids(10), sampling=sampling, drawn=True)
    verifier.commit(1, 10, [5], wanted=4)
    (answer, *ahead) = (r for r in verifier.settle() if r.round is not None)
    assert len(answer.ids) == 2
    assert len(answer.drawn) == 2
    assert answer.round is not None
    for branch in ahead:
        assert branch.round is not None
        assert branch.round.ids[:-1] == answer.ids, "they come after what was sent"
        assert len(branch.drawn) in (0, len(branch.ids))
    assert any(branch.drawn for branch in ahead)


def test_a_newer_commit_replaces_the_branch_in_the_making(verifier: Verifier) -> None:
    verifier.open(1, random_ids(10))
    verifier.commit(1, 10, [5], wanted=30)
    for _ in range(3):
        verifier.engine._passes.pass_s = 5e-4  # of a slow one a call would have all 30 tokens
        verifier.engine.step()
    verifier.commit(1, 11, [6], wanted=2)
    branches = [r for r in verifier.settle() if r.round is not None]
    bases = [r.round.base for r in branches if r.round]
    assert bases[0] == 11
    assert set(bases[1:]) == {12}, "the answer, and what goes ahead of the next"
    assert len(branches[0].ids) == 2


def test_an_engine_whose_device_is_lost_goes_no_further(
    verifier: Verifier, model: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("illegal address")

    verifier.open(1, random_ids(10))
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", lost)
        patch.setattr(accelerator, "check", lost)
        with pytest.raises(RuntimeError, match="illegal address"):
            verifier.settle()


def test_load_tells_how_full_steps_are_and_how_long_branches_wait(verifier: Verifier) -> None:
    engine = verifier.engine
    idle = engine.load()
    assert (idle.occupancy, idle.draft_wait_ms) == (0.0, 0.0)
    verifier.open(1, random_ids(10))
    verifier.settle()
    assert engine.load().occupancy == pytest.approx(0.3, abs=0.06), "ten rows of 32, one of four"
    ended = Round(base=10, path_hash=7, accepted=0, ids=(5,), draft_tokens=3)
    engine.sessions.commit(verifier.receive, 1, 1, ended, told_at=time.monotonic() - 5.0)
    verifier.settle()
    assert engine.load().draft_wait_ms >= 5000.0
