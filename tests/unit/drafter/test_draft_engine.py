"""The drafter's engine: mirrors stay true, drafts are the model's own keyed choices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common import fence
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from drafter.config import EngineConfig
from drafter.engine import DraftEngine, Reply
from drafter.mirror import Round
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import MAX_LEN, VOCAB


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(directory: Path) -> Runner:
    return runner(directory)


@pytest.fixture(scope="module")
def judge(directory: Path) -> Pair:
    """The same weights, decoding plainly: says what a draft must be."""
    return Pair.make(runner(directory))


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
    ) -> None:
        chosen = sampling or SamplingParams()
        self.engine.open(self.receive, session, incarnation, ids, chosen)

    def commit(
        self,
        session: int,
        base: int,
        ids: list[int],
        wanted: int = 4,
        incarnation: int = 1,
        path_hash: int = 7,
    ) -> None:
        ended = Round(
            base=base,
            path_hash=path_hash,
            accepted=len(ids) - 1,
            ids=tuple(ids),
            draft_tokens=wanted,
        )
        self.engine.commit(self.receive, session, incarnation, ended)

    def settle(self) -> list[Reply]:
        while self.engine.step():
            pass
        replies, self.replies = self.replies, []
        return replies


@pytest.fixture
def verifier(model: Runner) -> Iterator[Verifier]:
    one = Verifier(DraftEngine(model, EngineConfig(max_sessions=4, max_batch_tokens=32)))
    yield one
    one.engine.forget(one.receive)
    model.pool.blocks.check()
    assert model.pool.blocks.held == 0


def _ids(length: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(length)]


def test_a_mirror_reports_that_it_is_warm(verifier: Verifier) -> None:
    verifier.open(1, _ids(70))
    assert verifier.settle() == [Reply(session=1, incarnation=1, warm=70)]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_drafts_are_what_the_model_would_write(seed: int, model: Runner, judge: Pair) -> None:
    """Over random rounds, some agreeing with the draft and some not, for several sessions."""
    draw = random.Random(seed)
    verifier = Verifier(DraftEngine(model, EngineConfig(max_batch_tokens=draw.choice([8, 64]))))
    sampling = SamplingParams(temperature=draw.choice([0.0, 0.9]), seed=draw.randrange(99))
    texts = {s: _ids(draw.randint(1, 60), draw.randrange(5)) for s in range(3)}
    drafts: dict[int, list[int]] = {s: [] for s in texts}
    for session, ids in texts.items():
        verifier.open(session, ids, sampling=sampling)
    guesses = dict.fromkeys(texts, -1)
    for _ in range(4):
        wanted = {}
        for session, ids in texts.items():
            right = drafts[session][: draw.randint(0, 4)]
            last = draw.choice([t for t in range(3, VOCAB) if t != guesses[session]])
            wanted[session] = draw.randint(1, 5)
            verifier.commit(session, len(ids), [*right, last], wanted[session])
            ids.extend([*right, last])
        replies = [r for r in verifier.settle() if r.round is not None]
        for session, ids in texts.items():
            answer, ahead = (r for r in replies if r.session == session)
            assert ahead.round is not None
            drafts[session], guesses[session] = list(answer.ids), ahead.round.ids[-1]
            length = wanted[session]
            expected = judge.generate(ids, 2 * length + 1, sampling=sampling)
            assert drafts[session] == expected[:length]
            assert ahead.round.base == len(ids)
            assert ahead.round.ids == tuple(expected[: length + 1])
            assert ahead.ids == tuple(expected[length + 1 :])
            assert ahead.round.path_hash == fence.extend(fence.EMPTY, ids + expected[:length])
    for session in texts:
        verifier.engine.close(verifier.receive, session, incarnation=1)
    model.pool.blocks.check()
    assert model.pool.blocks.held == 0


def test_an_outcome_that_was_foreseen_is_not_answered_twice(verifier: Verifier) -> None:
    """The branch went ahead of the outcome; what follows goes ahead of the next one."""
    verifier.open(1, _ids(10))
    verifier.commit(1, 10, [5], wanted=3)
    _, _, ahead = verifier.settle()
    assert ahead.round is not None
    verifier.commit(1, 11, list(ahead.round.ids), wanted=3, path_hash=ahead.round.path_hash)
    (further,) = verifier.settle()
    assert further.round is not None
    assert further.round.base == 15
    assert further.round.ids[:3] == ahead.ids


def test_a_chain_cut_short_is_answered_though_its_end_was_drafted(verifier: Verifier) -> None:
    """The verifier checked two of three tokens; the third is its bonus: no outcome sent ahead."""
    verifier.open(1, _ids(10))
    verifier.commit(1, 10, [5], wanted=3)
    _, answer, ahead = verifier.settle()
    verifier.commit(1, 11, list(answer.ids), wanted=2)
    again, _ = verifier.settle()
    assert ahead.round is not None
    assert again.round is not None
    assert again.round.base == 11
    assert again.ids == (ahead.round.ids[-1], ahead.ids[0])


def test_a_newer_commit_replaces_the_branch_in_the_making(verifier: Verifier) -> None:
    verifier.open(1, _ids(10))
    verifier.commit(1, 10, [5], wanted=30)
    for _ in range(3):
        verifier.engine.step()
    verifier.commit(1, 11, [6], wanted=2)
    branches = [r for r in verifier.settle() if r.round is not None]
    assert [r.round.base for r in branches if r.round] == [11, 12], "the answer, and one ahead"
    assert len(branches[0].ids) == 2


@pytest.mark.parametrize(
    ("base", "ids"), [(9, [5]), (11, [5]), (10, []), (10, [VOCAB]), (10, [5] * MAX_LEN)]
)
def test_a_mirror_out_of_step_is_given_up(base: int, ids: list[int], verifier: Verifier) -> None:
    verifier.open(1, _ids(10))
    verifier.open(2, _ids(10, seed=1))
    verifier.settle()
    verifier.commit(1, base, ids)
    verifier.commit(2, 10, [5])
    replies = verifier.settle()
    assert [r.session for r in replies if r.dropped] == [1]
    assert {r.session for r in replies if r.round} == {2}, "the other session is unharmed"


@pytest.mark.parametrize("ids", [[], [VOCAB], [5] * MAX_LEN])
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
    verifier.engine.forget(verifier.receive)
    assert tight.pool.blocks.held == 0


def test_forgetting_a_verifier_frees_its_mirrors_only(verifier: Verifier) -> None:
    other = Verifier(verifier.engine)
    verifier.open(1, _ids(10))
    other.open(1, _ids(20))
    verifier.settle()
    verifier.engine.forget(verifier.receive)
    assert verifier.engine.load().sessions == 1
    other.commit(1, 20, [5])
    assert any(r.round for r in other.settle())
    other.engine.forget(other.receive)


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
