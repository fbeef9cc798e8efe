"""The drafter's engine: mirrors stay true, drafts are the model's own keyed choices."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import accelerator, fence
from common.model.distribution import Distribution
from common.model.loader import Dtype
from common.model.roll import Rolled
from common.model.runner import Runner
from common.model.tree import Drawn
from common.sampling_params import SamplingParams
from drafter import outlook, passes
from drafter.branch import Round
from drafter.config import EngineConfig
from drafter.engine import DraftEngine
from drafter.item import sent
from drafter.nodes import Node
from drafter.outlook import Chances
from drafter.reply import Reply
from drafter.sessions import Opening
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import VOCAB


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    """In bfloat16 several tokens come of one call, where there is a compiled decoder."""
    kind: Dtype = request.param
    return kind


@pytest.fixture(scope="module")
def model(directory: Path, dtype: Dtype) -> Runner:
    return runner(directory, dtype)


@pytest.fixture(scope="module")
def judge(directory: Path, dtype: Dtype) -> Pair:
    """The same weights, decoding plainly: says what a draft must be."""
    return Pair.make(runner(directory, dtype))


class Verifier:
    """One verifier's end of the stream, by hand."""

    def __init__(self, engine: DraftEngine) -> None:
        self.engine = engine
        self.replies: list[Reply] = []

    def receive(self, replies: list[Reply]) -> None:
        self.replies.extend(replies)

    def open(
        self,
        session: int,
        ids: list[int],
        incarnation: int = 1,
        sampling: SamplingParams | None = None,
        wanted: int = 0,
        fanout: int = 0,
        *,
        drawn: bool = False,
    ) -> None:
        opening = Opening(
            ids, sampling or SamplingParams(), drawn, draft_tokens=wanted, fanout=fanout
        )
        self.engine.sessions.open(self.receive, session, incarnation, opening)

    def commit(
        self,
        session: int,
        base: int,
        ids: list[int],
        wanted: int = 4,
        incarnation: int = 1,
        path_hash: int = 7,
        verifying: int = 0,
        fanout: int = 1,
        least: tuple[float, ...] = (),
    ) -> None:
        ended = Round(
            base=base,
            path_hash=path_hash,
            accepted=len(ids) - 1,
            ids=tuple(ids),
            draft_tokens=wanted,
            verifying=verifying,
            fanout=fanout,
            least=least,
        )
        self.engine.sessions.commit(self.receive, session, incarnation, ended)

    def settle(self) -> list[Reply]:
        while self.engine.step():
            pass
        replies, self.replies = self.replies, []
        return replies


@pytest.fixture
def verifier(model: Runner) -> Iterator[Verifier]:
    one = Verifier(DraftEngine(model, EngineConfig(max_sessions=4, max_batch_tokens=32)))
    yield one
    one.engine.sessions.forget(one.receive)
    model.pool.blocks.check()
    assert model.pool.blocks.held == 0


@pytest.fixture
def thorough(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome is too unlikely."""
    monkeypatch.setattr(outlook, "_LEAST", 0.0)


def check_slots(engine: DraftEngine, positions: int) -> None:
    """Every scratch position is one node's, or free."""
    for _, mirror in engine._mirrors.items():
        if mirror.scratch.capacity:
            nodes = (mirror.root, *mirror.root.below())
            held = [slot for node in nodes for slot in node.slots()]
            assert sorted([*held, *mirror.free]) == sorted(mirror.scratch.slots[:positions])


def check_done(engine: DraftEngine) -> None:
    """Nothing waits that nobody computes."""
    for _, mirror in engine._mirrors.items():
        assert not mirror.due
        assert not mirror.unplanned
        assert not any(branch.lacking for branch in mirror.branches)


def _ids(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(length)]


def test_a_mirror_reports_that_it_is_warm(verifier: Verifier) -> None:
    verifier.open(1, _ids(70))
    assert verifier.settle() == [Reply(session=1, incarnation=1, warm=70)]


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
    texts = {s: _ids(draw.randint(1, 60), draw.randrange(5)) for s in range(3)}

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
    text = _ids(10)
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
    text = _ids(70)
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
    text = [*_ids(10), 5]
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
    verifier.engine.sessions.commit(verifier.receive, 1, 1, ended)
    assert ended in [reply.round for reply in verifier.settle()]


def test_a_chain_cut_short_is_answered_though_its_end_was_drafted(verifier: Verifier) -> None:
    """The verifier checked two of three tokens; the third is its bonus: no outcome sent ahead."""
    verifier.open(1, _ids(10))
    verifier.commit(1, 10, [5], wanted=3)
    replies = verifier.settle()
    answer, ahead = replies[1], _ahead(replies, base=11, accepted=3)
    verifier.commit(1, 11, list(answer.ids), wanted=2)
    again = verifier.settle()[0]
    assert ahead.round is not None
    assert again.round is not None
    assert again.round.base == 11
    assert again.ids == (ahead.round.ids[-1], ahead.ids[0])


def test_branches_end_where_it_is_too_unlikely_that_they_are_right(verifier: Verifier) -> None:
    lengths = []
    for session, least in enumerate(((), (0.2,), (0.5,), (1.0,))):
        verifier.open(session, _ids(10))
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
    verifier.open(1, _ids(10), sampling=sampling)
    verifier.settle()
    verifier.commit(1, 10, [5], wanted=8, fanout=0, least=(1.0,))
    verifier.engine.step()
    assert [len(reply.ids) for reply in verifier.replies] == [1]


def test_each_token_has_a_chance_of_its_own_to_fall_below(verifier: Verifier) -> None:
    for session in range(1, 7):
        verifier.open(session, _ids(10, session))
        verifier.settle()
        sure = (0.0,) * session
        verifier.commit(session, 10, [5], wanted=8, fanout=2, least=(*sure, 1.0))
        lengths = [len(reply.ids) for reply in verifier.settle() if reply.round]
        assert lengths == [session] * len(lengths)
        assert len(lengths) > 1


def test_texts_drafted_for_in_one_call_end_each_where_it_is_said(verifier: Verifier) -> None:
    leasts: dict[int, tuple[float, ...]] = {1: (), 2: (1.0,), 3: (0.0, 0.0, 1.0), 4: (0.0,) * 99}
    for session in leasts:
        verifier.open(session, _ids(10, session))
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
    verifier.open(1, _ids(10))
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
    engine, ids = verifier.engine, _ids(draw.choice([5, 60]))
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


@pytest.mark.usefixtures("thorough")
def test_what_is_drafted_already_leaves_room_for_what_the_verifier_waits_for(
    model: Runner,
) -> None:
    verifier = Verifier(DraftEngine(model, EngineConfig(scratch_tokens=34)))
    verifier.open(1, _ids(10, 1))
    verifier.commit(1, 10, [5], wanted=8, fanout=3)
    answer = next(r for r in verifier.settle() if r.round and r.round.base == 10)
    verifier.commit(1, 11, [answer.ids[0]], wanted=32, fanout=0)
    assert [len(reply.ids) for reply in verifier.settle()] == [32]
    check_slots(verifier.engine, 34)
    verifier.engine.sessions.forget(verifier.receive)


@pytest.mark.parametrize("fanout", [0, 2])
def test_no_token_is_chosen_where_a_branch_has_ended_and_all_that_are_count(
    fanout: int, verifier: Verifier
) -> None:
    for session in (1, 2):
        verifier.open(session, _ids(10, session))
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


def test_what_is_known_of_choices_is_of_others_of_their_kind(verifier: Verifier) -> None:
    for session, (temperature, drawn) in enumerate([(0.0, False), (0.9, False), (0.9, True)] * 2):
        sampling = SamplingParams(temperature=temperature)
        verifier.open(session % 3, _ids(5), session, sampling, drawn=drawn)
        if session == 2:
            first = [mirror.chances for _, mirror in verifier.engine._mirrors.items()]
    again = [mirror.chances for _, mirror in verifier.engine._mirrors.items()]
    assert len({id(chances) for chances in first}) == 3
    assert [id(chances) for chances in again] == [id(chances) for chances in first]


def test_what_short_texts_have_shown_says_nothing_of_long_ones(verifier: Verifier) -> None:
    for session, length in enumerate((5, 511, 512)):
        verifier.open(session, _ids(length))
    short, grown, long = (mirror for _, mirror in verifier.engine._mirrors.items())
    assert short.chances is grown.chances is not long.chances
    verifier.commit(1, 511, [5])
    assert short.chances is not grown.chances is long.chances


@pytest.mark.usefixtures("thorough")
def test_bonuses_are_guessed_for_every_place_where_the_chain_may_break(verifier: Verifier) -> None:
    verifier.open(1, _ids(10))
    verifier.commit(1, 10, [5], wanted=3, fanout=2)
    outcomes = [r.round for r in verifier.settle() if r.round and r.round.base == 11]
    assert sorted({outcome.accepted for outcome in outcomes}) == [0, 1, 2, 3]
    assert sum(outcome.accepted == 0 for outcome in outcomes) == 2


@pytest.mark.usefixtures("thorough")
def test_the_likeliest_outcomes_go_ahead_in_a_first_wave(model: Runner) -> None:
    heard: list[list[Reply]] = []
    engine = DraftEngine(model, EngineConfig())
    engine.sessions.open(heard.append, 1, 1, Opening(_ids(10), SamplingParams()))
    ended = Round(base=10, path_hash=7, accepted=0, ids=(5,), draft_tokens=4, fanout=3)
    engine.sessions.commit(heard.append, 1, 1, ended)
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
        verifier.open(1, _ids(10))
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


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("pass_s", [1e-6, 1.0])
def test_a_branch_takes_one_call_however_its_tokens_are_chosen(
    temperature: float,
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
    verifier.open(1, _ids(10), sampling=SamplingParams(temperature=temperature, seed=3))
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
    verifier.open(1, _ids(10), sampling=sampling)
    verifier.settle()
    verifier.engine._passes.pass_s = 1e-6
    verifier.commit(1, 10, [5], wanted=6, fanout=2)
    answer, *_ = (reply for reply in verifier.settle() if reply.round)
    assert list(answer.ids) == judge.generate([*_ids(10), 5], 6, sampling=sampling)
    assert unsure > 3
    check_slots(verifier.engine, len(next(iter(verifier.engine._mirrors.items()))[1].scratch.slots))


def test_with_no_fanout_nothing_goes_ahead(verifier: Verifier) -> None:
    verifier.open(1, _ids(10))
    verifier.commit(1, 10, [5], wanted=3, fanout=0)
    branches = [r for r in verifier.settle() if r.round is not None]
    assert [r.round.base for r in branches if r.round] == [10]


def test_draws_come_with_what_they_were_drawn_from(verifier: Verifier) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=8, seed=5)
    verifier.open(1, _ids(10), sampling=sampling, drawn=True)
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
    verifier.open(1, _ids(10), sampling=sampling, drawn=True)
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


def test_while_no_draft_is_wanted_committed_text_gathers(verifier: Verifier) -> None:
    text = _ids(30)
    verifier.open(1, text[:20])
    verifier.settle()
    for base in range(20, 25):
        verifier.commit(1, base, [text[base]], wanted=0)
        assert not verifier.engine.step()
    verifier.commit(1, 25, text[25:], fanout=0)
    (resumed,) = verifier.settle()
    verifier.open(2, text)
    verifier.settle()
    verifier.commit(2, 30, [7], fanout=0)
    verifier.commit(1, 30, [7], fanout=0)
    fresh, again = sorted(verifier.settle(), key=lambda reply: -reply.session)
    assert len(resumed.ids) == 4
    assert again.ids == fresh.ids
    verifier.commit(1, 31, _ids(40), wanted=0)
    assert verifier.engine.step(), "not for ever"
    assert not verifier.engine.step()


def test_a_newer_commit_replaces_the_branch_in_the_making(verifier: Verifier) -> None:
    verifier.open(1, _ids(10))
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


@pytest.mark.parametrize(("base", "ids"), [(9, [5]), (11, [5]), (10, []), (10, [VOCAB])])
def test_a_mirror_out_of_step_is_given_up(base: int, ids: list[int], verifier: Verifier) -> None:
    verifier.open(1, _ids(10))
    verifier.open(2, _ids(10, seed=1))
    verifier.settle()
    verifier.commit(1, base, ids)
    verifier.commit(2, 10, [5])
    replies = verifier.settle()
    assert [r.session for r in replies if r.dropped] == [1]
    assert {r.session for r in replies if r.round} == {2}, "the other session is unharmed"


@pytest.mark.parametrize("ids", [[], [VOCAB]])
def test_what_cannot_be_mirrored_is_refused(ids: list[int], verifier: Verifier) -> None:
    verifier.open(1, ids)
    (reply,) = verifier.settle()
    assert reply.dropped is not None


def test_stale_and_unknown_commits_are_ignored(verifier: Verifier) -> None:
    verifier.open(1, _ids(10), incarnation=2)
    verifier.settle()
    verifier.commit(1, 10, [5], incarnation=1)
    verifier.commit(9, 10, [5])
    assert verifier.settle() == []


def test_the_least_recently_used_mirror_makes_room(verifier: Verifier) -> None:
    for session in range(4):
        verifier.open(session, _ids(10, seed=session))
        verifier.settle()
    verifier.commit(0, 10, [5])
    verifier.settle()
    verifier.open(4, _ids(10, seed=4))
    dropped = [r.session for r in verifier.settle() if r.dropped]
    assert dropped == [1]


def test_out_of_blocks_drops_mirrors_not_the_engine(directory: Path) -> None:
    tight = runner(directory, kv_bytes=9 * 16 * 2 * 2 * 2 * 12 * 4)
    verifier = Verifier(DraftEngine(tight, EngineConfig()))
    for session in range(3):
        verifier.open(session, _ids(60, seed=session))
        verifier.settle()
    verifier.commit(2, 60, [5], wanted=3)
    replies = verifier.settle()
    assert any(r.round for r in replies)
    tight.pool.blocks.check()
    verifier.engine.sessions.forget(verifier.receive)
    assert tight.pool.blocks.held == 0


def test_forgetting_a_verifier_frees_its_mirrors_only(verifier: Verifier) -> None:
    other = Verifier(verifier.engine)
    verifier.open(1, _ids(10))
    other.open(1, _ids(20))
    verifier.settle()
    verifier.engine.sessions.forget(verifier.receive)
    assert verifier.engine.load().sessions == 1
    other.commit(1, 20, [5])
    assert any(r.round for r in other.settle())
    other.engine.sessions.forget(other.receive)


def test_a_failing_pass_drops_its_mirrors(
    verifier: Verifier, model: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(segments: object) -> None:
        raise RuntimeError("boom")

    verifier.open(1, _ids(10))
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", broken)
        (reply,) = verifier.settle()
    assert reply.dropped == "the engine failed"
    verifier.open(2, _ids(10))
    assert verifier.settle()[0].warm == 10


def test_an_engine_whose_device_is_lost_goes_no_further(
    verifier: Verifier, model: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("illegal address")

    verifier.open(1, _ids(10))
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", lost)
        patch.setattr(accelerator, "check", lost)
        with pytest.raises(RuntimeError, match="illegal address"):
            verifier.settle()


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
    ids = _ids(10)
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


def test_load_tells_how_full_steps_are_and_how_long_branches_wait(verifier: Verifier) -> None:
    engine = verifier.engine
    idle = engine.load()
    assert (idle.occupancy, idle.draft_wait_ms) == (0.0, 0.0)
    verifier.open(1, _ids(10))
    verifier.settle()
    assert engine.load().occupancy == pytest.approx(0.3, abs=0.06), "ten rows of 32, one of four"
    ended = Round(base=10, path_hash=7, accepted=0, ids=(5,), draft_tokens=3)
    engine.sessions.commit(verifier.receive, 1, 1, ended, told_at=time.monotonic() - 5.0)
    verifier.settle()
    assert engine.load().draft_wait_ms >= 5000.0
