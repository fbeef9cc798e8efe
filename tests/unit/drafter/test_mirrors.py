"""Mirrors: what may be one, what becomes of it, and who makes room for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model.runner import Runner
from drafter.config import EngineConfig
from drafter.engine import DraftEngine
from drafter.reply import Reply
from tests.inprocess import runner
from tests.tiny_models import VOCAB
from tests.unit.drafter.by_hand import Verifier, random_ids


def test_a_mirror_reports_that_it_is_warm(verifier: Verifier) -> None:
    verifier.open(1, random_ids(70))
    assert verifier.settle() == [Reply(session=1, incarnation=1, warm=70)]


def test_while_no_draft_is_wanted_committed_text_gathers(verifier: Verifier) -> None:
    text = random_ids(30)
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
    verifier.commit(1, 31, random_ids(40), wanted=0)
    assert verifier.engine.step(), "not for ever"
    assert not verifier.engine.step()


@pytest.mark.parametrize(("base", "ids"), [(9, [5]), (11, [5]), (10, []), (10, [VOCAB])])
def test_a_mirror_out_of_step_is_given_up(base: int, ids: list[int], verifier: Verifier) -> None:
    verifier.open(1, random_ids(10))
    verifier.open(2, random_ids(10, seed=1))
    verifier.settle()
    verifier.commit(1, base, ids)
    verifier.commit(2, 10, [5])
    replies = verifier.settle()
    assert [r.session for r in replies if r.dropped] == [1]
    assert {r.session for r in replies if r.round} == {2}, "the other session is unharmed"


def test_stale_and_unknown_commits_are_ignored(verifier: Verifier) -> None:
    verifier.open(1, random_ids(10), incarnation=2)
    verifier.settle()
    verifier.commit(1, 10, [5], incarnation=1)
    verifier.commit(9, 10, [5])
    assert verifier.settle() == []


def test_the_least_recently_used_mirror_makes_room(verifier: Verifier) -> None:
    for session in range(4):
        verifier.open(session, random_ids(10, seed=session))
        verifier.settle()
    verifier.commit(0, 10, [5])
    verifier.settle()
    verifier.open(4, random_ids(10, seed=4))
    dropped = [r.session for r in verifier.settle() if r.dropped]
    assert dropped == [1]


def test_out_of_blocks_drops_mirrors_not_the_engine(directory: Path) -> None:
    tight = runner(directory, kv_bytes=9 * 16 * 2 * 2 * 2 * 12 * 4)
    verifier = Verifier(DraftEngine(tight, EngineConfig()))
    for session in range(3):
        verifier.open(session, random_ids(60, seed=session))
        verifier.settle()
    verifier.commit(2, 60, [5], wanted=3)
    replies = verifier.settle()
    assert any(r.round for r in replies)
    tight.pool.blocks.check()
    verifier.engine.sessions.forget(verifier.receive)
    assert tight.pool.blocks.held == 0


def test_forgetting_a_verifier_frees_its_mirrors_only(verifier: Verifier) -> None:
    other = Verifier(verifier.engine)
    verifier.open(1, random_ids(10))
    other.open(1, random_ids(20))
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

    verifier.open(1, random_ids(10))
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", broken)
        (reply,) = verifier.settle()
    assert reply.dropped == "the engine failed"
    verifier.open(2, random_ids(10))
    assert verifier.settle()[0].warm == 10
