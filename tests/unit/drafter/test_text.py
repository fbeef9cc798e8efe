"""What mirrors hold of long texts: their end, and drafts are what the model makes of that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common import fence
from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease, KvPool, LayerShape
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import sample
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from drafter.branch import Round
from drafter.config import EngineConfig
from drafter.engine import DraftEngine
from drafter.reply import Reply
from drafter.sessions import Opening
from drafter.text import Extent, Text
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import MAX_LEN, VOCAB

CONTEXT = 40
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=0.9, top_k=20, seed=6),
    SamplingParams(temperature=0.9, repetition_penalty=1.3, seed=7),
)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    directory = tiny_models.save("llama", tmp_path_factory.mktemp("llama"))
    return runner(directory, request.param)


def _written(model: Runner, text: list[int], dropped: int, params: SamplingParams) -> int:
    """The token after a text that the model sees without its first ids."""
    seen = torch.zeros(VOCAB, dtype=torch.bool)
    seen[text] = True
    lease = KvLease(model.pool.blocks)
    assert lease.reserve(len(text) - dropped)
    segment = Segment(text[dropped:], 0, lease.slots, wanted=[len(text) - dropped - 1])
    row = Row(params=params, position=len(text), seen=seen, path=())
    (token,) = sample(model.forward([segment]).logits[:1], [row]).tolist()
    lease.release()
    return int(token)


@pytest.mark.parametrize("opened", [5, CONTEXT + 60, MAX_LEN + 100])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafts_are_what_the_model_makes_of_the_end(
    sampling: SamplingParams, opened: int, model: Runner
) -> None:
    """Its choices have the noise of where they stand in the whole text, which may be longer than
    the model allows."""
    draw = random.Random(opened)
    engine = DraftEngine(model, EngineConfig(context_tokens=CONTEXT))
    heard: list[Reply] = []
    text = [draw.randrange(3, VOCAB) for _ in range(opened)]
    engine.sessions.open(heard.extend, 1, 1, Opening(text, sampling))
    chain: tuple[int, ...] = ()
    cuts = set()
    for turn in range(40):
        while engine.step():
            pass
        assert not any(reply.dropped for reply in heard)
        ((_, mirror),) = engine._mirrors.items()
        dropped = mirror.text.dropped
        assert len(text) - dropped <= CONTEXT
        cuts.add(dropped)
        for reply in heard:
            if reply.round is None:
                assert reply.warm == opened
                continue
            here = [*text, *(reply.round.ids if reply.round.base == len(text) else ())]
            for token in reply.ids:
                assert token == _written(model, here, dropped, sampling)
                here.append(token)
        answers = [reply.ids for reply in heard if reply.round and reply.round.base < len(text)]
        assert bool(answers) == (turn > 0), "none is left out, though the text was cut"
        chain = answers[0] if answers else ()
        right = chain[: draw.randint(0, len(chain))]
        foreseen = [reply.round.ids for reply in heard if reply.round]
        bonus = draw.choice([i for i in range(3, VOCAB) if (*right, i) not in foreseen])
        heard.clear()
        ended = Round(
            base=len(text),
            path_hash=fence.extend(fence.extend(fence.EMPTY, text), chain),
            accepted=len(right),
            ids=(*right, bonus),
            draft_tokens=3,
            fanout=1,
        )
        text += ended.ids
        engine.sessions.commit(heard.extend, 1, 1, ended, told_at=0.0)
    assert len(cuts) > 2, "it was cut again and again"
    assert all(cut % (CONTEXT // 2) == 0 for cut in cuts)
    parts, size = (CONTEXT, EngineConfig.scratch_tokens), model.pool.blocks.block_tokens
    assert model.pool.blocks.held <= sum(-(-tokens // size) for tokens in parts)
    engine.sessions.forget(heard.extend)
    assert model.pool.blocks.held == 0


def test_what_is_checked_while_a_text_is_cut_costs_one_branch(model: Runner) -> None:
    """The drafter no longer knows what the verifier is checking, and drafts again after that."""
    engine, heard = DraftEngine(model, EngineConfig(context_tokens=CONTEXT)), list[Reply]()
    text = list(range(3, 3 + CONTEXT))
    engine.sessions.open(heard.extend, 1, 1, Opening(text, SamplingParams()))
    for new, verifying, answered in (((9,), 2, False), ((9, 9), 0, True)):
        heard.clear()
        ended = Round(len(text), fence.EMPTY, len(new) - 1, new, 3, verifying, fanout=1)
        engine.sessions.commit(heard.extend, 1, 1, ended, told_at=0.0)
        text += new
        while engine.step():
            pass
        assert any(reply.round for reply in heard) == answered
    engine.sessions.forget(heard.extend)


@given(
    pieces=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=70), min_size=1),
    context=st.integers(0, 60),
    max_len=st.integers(2, 50),
    cache_tokens=st.integers(4, 150),
)
def test_a_text_is_held_as_far_as_it_may_be(
    pieces: list[list[int]], context: int, max_len: int, cache_tokens: int
) -> None:
    extent = Extent.of(context, 8, max_len, cache_tokens)
    blocks = BlockManager(64, 4)
    whole = list(pieces[0])
    text = Text(whole, extent, blocks, b"")
    text.keep_seen(whole, 100, torch.device("cpu"))
    for piece in pieces[1:]:
        cut = not text.takes(len(piece))
        assert text.lease.reserve(len(text.ids))
        text.computed = len(text.ids)
        text.extend(piece)
        whole += piece
        assert text.pending == (len(text.ids) if cut else len(piece))
    assert text.length == len(whole)
    assert text.ids == whole[-len(text.ids) :]
    assert 1 <= len(text.ids) <= max(min(context or max_len, max_len - 1, cache_tokens // 2), 2)
    assert min(len(whole), extent.most // 2) <= len(text.ids)
    assert text.room + len(text.ids) == max_len
    assert text.path_hash == fence.extend(fence.EMPTY, whole)
    assert text.seen is not None
    assert set(text.seen.nonzero()[:, 0].tolist()) == set(whole)
    text.lease.release()
    assert blocks.held == 0


def test_what_is_held_of_a_text_that_goes_on_is_found_in_the_cache(tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path))
    engine, text = DraftEngine(target, EngineConfig(context_tokens=2 * CONTEXT)), list(range(3, 99))
    for session, (length, computed) in enumerate(((81, 0), (81, 32), (96, 32))):
        engine.sessions.open(_nobody, session, 1, Opening(text[:length], SamplingParams()))
        (_, mirror) = engine._mirrors.items()[-1]
        assert (mirror.text.dropped, mirror.text.computed) == (CONTEXT, computed)
        while engine.step():
            pass


def test_a_text_is_mirrored_on_in_a_cache_smaller_than_it(tmp_path: Path) -> None:
    """And than what the drafter would look at."""
    block = KvPool.block_bytes([LayerShape(2, 12, 12)] * 2, 16, torch.float32)
    small = runner(tiny_models.save("llama", tmp_path), kv_bytes=(1 + 24) * block)
    assert small.pool.blocks.count == 24
    engine, heard = DraftEngine(small, EngineConfig()), list[Reply]()
    text = list(range(3, 103))
    engine.sessions.open(heard.extend, 1, 1, Opening(text, SamplingParams()))
    for _ in range(120):
        while engine.step():
            pass
        ended = Round(len(text), fence.EMPTY, 0, (9, 9, 9, 9), 8, fanout=3)
        engine.sessions.commit(heard.extend, 1, 1, ended, told_at=0.0)
        text += ended.ids
    assert not any(reply.dropped for reply in heard)
    assert sum(1 for reply in heard if reply.round and not reply.round.accepted) >= 120


def test_a_text_that_begins_anew_does_not_keep_the_branches_of_others(model: Runner) -> None:
    engine = DraftEngine(model, EngineConfig(context_tokens=2 * CONTEXT, max_batch_tokens=CONTEXT))
    heard: list[Reply] = []
    for session, length in ((1, 2 * CONTEXT), (2, 5)):
        opening = Opening(range(3, 3 + length), SamplingParams())
        engine.sessions.open(heard.extend, session, 1, opening)
        while engine.step():
            pass
    heard.clear()
    for session, base in ((1, 2 * CONTEXT), (2, 5)):
        engine.sessions.commit(
            heard.extend, session, 1, Round(base, fence.EMPTY, 0, (9,), 1), told_at=0.0
        )
    while not heard:
        assert engine.step()
    assert heard[0].session == 2
    engine.sessions.forget(heard.extend)


@pytest.mark.parametrize("max_len", [2, 3, 10, 40])
def test_a_branch_ends_with_the_positions_of_a_model_that_has_few(
    max_len: int, tmp_path: Path
) -> None:
    tiny = runner(tiny_models.save("llama", tmp_path, max_position_embeddings=max_len))
    engine, heard, text = DraftEngine(tiny, EngineConfig()), list[Reply](), [5]
    engine.sessions.open(heard.extend, 1, 1, Opening(text, SamplingParams()))
    for _ in range(3 * max_len):
        heard.clear()
        engine.sessions.commit(
            heard.extend, 1, 1, Round(len(text), fence.EMPTY, 0, (9,), 32), told_at=0.0
        )
        text.append(9)
        while engine.step():
            pass
        ((_, mirror),) = engine._mirrors.items()
        (reply,) = (reply for reply in heard if reply.round)
        assert len(reply.ids) == min(32, mirror.text.room)


def test_draws_say_what_they_are_drawn_from_after_a_cut_too(model: Runner) -> None:
    engine, heard = DraftEngine(model, EngineConfig(context_tokens=CONTEXT)), list[Reply]()
    text, sampling = list(range(3, 3 + CONTEXT)), SamplingParams(temperature=0.9, top_k=8)
    engine.sessions.open(heard.extend, 1, 1, Opening(text, sampling, drawn=True))
    for _ in range(3):
        engine.sessions.commit(
            heard.extend, 1, 1, Round(len(text), fence.EMPTY, 0, (9,), 3), told_at=0.0
        )
        text.append(9)
        while engine.step():
            pass
        (reply,) = (reply for reply in heard if reply.round)
        assert len(reply.ids) == 3
        assert all(token in d.ids for token, d in zip(reply.ids, reply.drawn, strict=True))
        heard.clear()
    engine.sessions.forget(heard.extend)


def _nobody(replies: list[Reply]) -> None:
    """Hears them."""


def test_the_text_is_the_same_however_little_of_it_the_drafter_holds(model: Runner) -> None:
    prompt = [3 + i % 50 for i in range(70)]
    for sampling in SAMPLINGS:
        plain = Pair.make(model).generate(prompt, 120, sampling=sampling)
        drafted = Pair.make(model, model, drafting=EngineConfig(context_tokens=CONTEXT))
        assert drafted.generate(prompt, 120, sampling=sampling, draft_tokens=3) == plain
