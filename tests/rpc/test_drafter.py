"""The drafter over the wire, asked by a verifier that may be anything."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.v1 import drafter_pb2, drafter_pb2_grpc, types_pb2, worker_pb2, worker_pb2_grpc

from common.lanes.near import OFFER
from common.model.runner import Runner
from common.rpc.channel import open_channel
from common.sampling_params import SamplingParams
from drafter import service as draft_service
from drafter import stream as draft_stream
from drafter.config import EngineConfig
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.rpc.draft_streams import (
    HEAD,
    HELLO,
    SAMPLING,
    LaneStream,
    Stream,
    both_ways,
    conversing,
    offers,
    opening,
    round_of,
    serving_another,
)
from tests.rpc.services import braked, drafting, refusal
from tests.tiny_models import MAX_LEN, VOCAB
from tests.waiting import until

CODE = grpc.StatusCode
MANY = 40


@pytest.fixture(autouse=True)
def _nothing_left(twin: Runner) -> Iterator[None]:
    yield
    twin.pool.blocks.check()
    assert twin.pool.blocks.held == 0


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    draw = random.Random(3)
    return [draw.randrange(3, VOCAB) for _ in range(30)]


@pytest.fixture(scope="module")
def text(twin: Runner, prompt: list[int]) -> list[int]:
    """What the drafter's own model says after the prompt, with the session's noise."""
    return Pair.make(twin).generate(prompt, MANY, sampling=SamplingParams(temperature=0.8, seed=7))


@both_ways
async def test_branches_follow_the_rounds(
    twin: Runner, prompt: list[int], text: list[int], lane: bool
) -> None:
    async with drafting(twin) as drafter, conversing(drafter, lane=lane) as stream:
        await stream.send(opens=[opening(prompt)])
        done, lengths = 0, (1, 3, 5, 2)
        for taken, length in zip(lengths, (*lengths[1:], 4), strict=True):
            base, ids = len(prompt) + done, text[done : done + taken]
            await stream.send(commits=[round_of(base, ids, draft_tokens=length)])
            done += taken
            branches, branch = await stream.branch()
            assert (branches.session, branches.incarnation) == (1, 1)
            assert (branches.base, branches.path_hash) == (base, base * 31), "the round's own key"
            assert (branch.accepted, branch.bonus) == (taken - 1, ids[-1])
            assert list(branch.ids) == text[done : done + length]
        await stream.send(closes=[drafter_pb2.Close(session=1, incarnation=1)])
        await drafter.empty()
        assert drafter.engine.load().stale == 0


@both_ways
async def test_ids_that_the_target_lacks_are_not_drafted(
    tiny_directory: Path, tmp_path: Path, prompt: list[int], text: list[int], lane: bool
) -> None:
    """Behind one tokenizer: this drafter has more padding, as likely as what it repeats."""
    padded = runner(tiny_models.resized(tiny_directory, tmp_path, VOCAB + 150), "bfloat16")
    hello = drafter_pb2.Hello(tokenizer_fingerprint="a" * 64, vocab_size=VOCAB)
    few = types_pb2.SamplingParams(temperature=0.8, seed=7, top_k=8)
    async with (
        drafting(padded, fingerprint="a" * 64) as drafter,
        conversing(drafter, lane=lane, hello=hello) as stream,
    ):
        await stream.send(opens=[opening(prompt)])
        await stream.send(commits=[round_of(len(prompt), text[:1], draft_tokens=12)])
        assert list((await stream.branch())[1].ids) == text[1:13]
        await stream.send(opens=[opening(prompt, session=2, sampling=few, drawn=True)])
        await stream.send(commits=[round_of(len(prompt), text[:1], session=2, draft_tokens=4)])
        _, branch = await stream.branch()
        assert len(branch.drawn) == len(branch.ids) == 4
        assert all(max(drawn.ids) < VOCAB for drawn in branch.drawn)


async def test_what_comes_with_the_hello_counts(
    twin: Runner, prompt: list[int], text: list[int]
) -> None:
    async with drafting(twin) as drafter, open_channel(drafter.address) as channel:
        call = drafter_pb2_grpc.DrafterStub(channel).Draft()
        commits = [round_of(len(prompt), text[:1])]
        await call.write(
            drafter_pb2.DraftRequest(hello=HELLO, opens=[opening(prompt)], commits=commits)
        )
        _, branch = await Stream(call).branch()
        assert list(branch.ids) == text[1:5]
        call.cancel()
        await drafter.empty()


@both_ways
async def test_a_stream_that_ends_frees_its_sessions_and_no_others(
    twin: Runner, prompt: list[int], text: list[int], lane: bool
) -> None:
    async with drafting(twin) as drafter, conversing(drafter, lane=lane) as staying:
        await staying.send(opens=[opening(prompt)])
        async with conversing(drafter, lane=lane) as leaving:
            await leaving.send(opens=[opening(prompt, session) for session in range(1, 6)])
            await until(lambda: drafter.engine.live == 6)
        await until(lambda: drafter.engine.live == 1)
        await staying.send(commits=[round_of(len(prompt), text[:1])])
        _, branch = await staying.branch()
        assert list(branch.ids) == text[1:5]
        await staying.call.done_writing()
        await staying.end()
        await drafter.empty()


@pytest.mark.parametrize(
    ("first", "code", "words"),
    [
        (drafter_pb2.DraftRequest(), CODE.INVALID_ARGUMENT, "hello: must come with the first"),
        (
            drafter_pb2.DraftRequest(opens=[opening([5])]),
            CODE.INVALID_ARGUMENT,
            "hello: must come with the first",
        ),
        (
            drafter_pb2.DraftRequest(
                hello=drafter_pb2.Hello(vocab_size=VOCAB, tokenizer_fingerprint="b" * 64)
            ),
            CODE.FAILED_PRECONDITION,
            "does not fit: its tokenizer (none) differs from the target's (bbbbbbbbbbbb)",
        ),
        (
            drafter_pb2.DraftRequest(hello=drafter_pb2.Hello(vocab_size=VOCAB + 1)),
            CODE.FAILED_PRECONDITION,
            f"does not fit: its vocabulary has {VOCAB} ids, the target's {VOCAB + 1}",
        ),
    ],
)
async def test_strangers_are_refused(
    first: drafter_pb2.DraftRequest, code: grpc.StatusCode, words: str, twin: Runner
) -> None:
    async with drafting(twin) as drafter, open_channel(drafter.address) as channel:
        error = await refusal(drafter_pb2_grpc.DrafterStub(channel).Draft(iter([first])))
        assert error.code() is code
        assert words in error.details()
        assert drafter.engine.live == 0


async def test_who_says_nothing_keeps_no_place(
    twin: Runner, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drafting(twin, max_streams=1) as drafter, open_channel(drafter.address) as channel:
        with monkeypatch.context() as patch:
            patch.setattr(draft_stream, "_HELLO_S", 0.2)
            silent = drafter_pb2_grpc.DrafterStub(channel).Draft()
            error = await refusal(silent)
        assert error.code() is CODE.INVALID_ARGUMENT
        assert "hello: must come within 0.2 s" in error.details()
        async with conversing(drafter) as stream:
            await stream.send(opens=[opening(prompt)])
            await until(lambda: drafter.engine.live == 1)
            await stream.call.done_writing()
            await stream.end()
        await drafter.empty()


@both_ways
async def test_who_says_too_much_at_once_is_let_go(lane: bool, twin: Runner) -> None:
    async with drafting(twin) as drafter, conversing(drafter, lane=lane) as stream:
        closes = [drafter_pb2.Close(session=session) for session in range(20_000)]
        await stream.send(closes=closes)
        code: grpc.StatusCode = await stream.call.code()
        assert code is (CODE.UNAVAILABLE if lane else CODE.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    ("opened", "reason"),
    [
        (opening([]), "its ids do not fit"),
        (opening([VOCAB]), "its ids do not fit"),
        (opening([5], sampling=types_pb2.SamplingParams(top_p=2.0)), "sampling.top_p"),
        (opening([5], sampling=types_pb2.SamplingParams(logit_bias={VOCAB: 1.0})), "logit_bias"),
    ],
)
async def test_a_session_that_cannot_be_mirrored_is_dropped_alone(
    opened: drafter_pb2.Open, reason: str, twin: Runner, prompt: list[int], text: list[int]
) -> None:
    async with drafting(twin) as drafter, conversing(drafter) as stream:
        await stream.send(opens=[opened, opening(prompt, session=2)])
        dropped = await stream.drop()
        assert (dropped.session, dropped.incarnation) == (1, 1)
        assert reason in dropped.reason
        await stream.send(commits=[round_of(len(prompt), text[:1], session=2)])
        _, branch = await stream.branch()
        assert list(branch.ids) == text[1:5]


async def test_commits_of_another_fence(twin: Runner, prompt: list[int], text: list[int]) -> None:
    base = len(prompt)
    async with drafting(twin) as drafter, conversing(drafter) as stream:
        await stream.send(opens=[opening(prompt), opening(prompt, session=2)])
        await stream.send(
            commits=[
                round_of(base, text[:1], session=9),
                round_of(base, text[:1], incarnation=2),
                round_of(base, text[:1]),
            ]
        )
        branches, branch = await stream.branch()
        assert branches.session == 1
        assert list(branch.ids) == text[1:5]
        assert drafter.engine.load().stale == 2
        for bad, reason in (
            (round_of(base + 1, text[:1], 2), "out of step with its verifier"),
            (round_of(base, [], 2), "out of step with its verifier"),
            (round_of(base, [VOCAB], 2), "its ids do not fit this model"),
        ):
            await stream.send(commits=[bad])
            assert (await stream.drop()).reason == reason
            await stream.send(opens=[opening(prompt, session=2)])


async def test_a_lane_that_breaks_ends_its_stream_and_no_other(
    twin: Runner, prompt: list[int], text: list[int]
) -> None:
    async with serving_another(twin, prompt, text, lane=True) as drafter:
        for broken, why in (
            (b"", "it hung up"),
            (HEAD.pack(1 << 30, 0.0), "a message of 1073741824 bytes"),
            (HEAD.pack(3, 0.0) + b"\xff\xff\xff", "a message that makes no sense"),
        ):
            async with conversing(drafter, lane=True) as stream:
                assert isinstance(stream, LaneStream)
                await stream.send(opens=[opening(prompt)])
                await until(lambda: drafter.engine.live == 2)
                stream.writer.write(broken)
                stream.writer.write_eof()
                error = await rest(stream.call)
                assert error.code() is CODE.UNAVAILABLE
                assert error.details() == f"the lane of this stream is over: {why}"
                await until(lambda: drafter.engine.live == 1)


def check_private(path: Path) -> None:
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o077 == 0, "other users have no business there"


async def test_a_lane_is_for_one_and_only_where_it_is_wanted(twin: Runner) -> None:
    async with drafting(twin) as drafter, open_channel(drafter.address) as channel:
        call = drafter_pb2_grpc.DrafterStub(channel).Draft()
        await call.write(drafter_pb2.DraftRequest(hello=HELLO))
        path = Path((await offers(call))[OFFER])
        check_private(path)
        await call.write(drafter_pb2.DraftRequest(opens=[opening([5])]))  # it stays with gRPC
        await until(lambda: not path.exists())
        call.cancel()
        async with conversing(drafter, lane=True) as stream:
            path = Path((await offers(stream.call))[OFFER])
            await until(lambda: not path.exists())
    async with drafting(twin, way="grpc") as drafter, open_channel(drafter.address) as channel:
        call = drafter_pb2_grpc.DrafterStub(channel).Draft()
        await call.write(drafter_pb2.DraftRequest(hello=HELLO))
        assert OFFER not in await offers(call)
        call.cancel()


async def test_a_late_close_leaves_the_newer_mirror(
    twin: Runner, prompt: list[int], text: list[int]
) -> None:
    async with drafting(twin) as drafter, conversing(drafter) as stream:
        await stream.send(opens=[opening(prompt, incarnation=2)])
        await stream.send(closes=[drafter_pb2.Close(session=1, incarnation=1)])
        await stream.send(commits=[round_of(len(prompt), text[:1], incarnation=2)])
        assert list((await stream.branch())[1].ids) == text[1:5]
        await stream.send(closes=[drafter_pb2.Close(session=1, incarnation=2)])
        await drafter.empty()


async def test_nothing_is_read_while_the_engine_is_behind(
    twin: Runner, prompt: list[int], text: list[int]
) -> None:
    each = 100
    closes = [drafter_pb2.Close(session=9, incarnation=1)] * each
    async with drafting(twin) as drafter, conversing(drafter) as stream:
        with braked(twin) as brake:
            await stream.send(opens=[opening(prompt)])
            await until(lambda: drafter.engine.live == 1)

            async def flood() -> None:
                for _ in range(50):
                    await stream.send(closes=closes)

            flooding = asyncio.create_task(flood())
            await until(lambda: drafter.engine.backlog > draft_stream.MOST_BACKLOG)
            await asyncio.sleep(0.1)
            assert drafter.engine.backlog <= draft_stream.MOST_BACKLOG + each
            brake.open()
            await flooding
        await stream.send(commits=[round_of(len(prompt), text[:1])])
        assert list((await stream.branch())[1].ids) == text[1:5]
        stream.call.cancel()
        await drafter.empty()


async def test_a_verifier_that_does_not_read_loses_its_stream(
    twin: Runner, prompt: list[int], text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[bool] = []

    class Watched(draft_stream.DraftStream):
        """Tells, for each message, whether it was one too many."""

        def _queue(self, message: drafter_pb2.DraftResponse) -> None:
            super()._queue(message)
            ends.append(self._broken.done())

    monkeypatch.setattr(draft_stream, "MOST_UNSENT", 4)
    monkeypatch.setattr(draft_service, "DraftStream", Watched)
    refused = [opening([], session) for session in range(2, 2_000)]  # a long answer, soon made
    async with serving_another(twin, prompt, text) as drafter, conversing(drafter) as deaf:
        await deaf.send(opens=[opening(prompt)])
        while not any(ends):
            answers = len(ends)
            await deaf.send(opens=refused)
            await until(lambda answers=answers: len(ends) > answers)
        await until(lambda: drafter.engine.live == 1)
        error = await rest(deaf.call)
        assert error.code() is CODE.RESOURCE_EXHAUSTED
        assert error.details() == "4 messages wait to be read; read faster"


async def rest(call: Any) -> grpc.aio.AioRpcError:
    """Reads a stream, by `read` as before, to the error it ends with."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call succeeded")


async def test_one_stream_too_many_is_refused(twin: Runner) -> None:
    async with drafting(twin, max_streams=1) as drafter, open_channel(drafter.address) as channel:
        stub = drafter_pb2_grpc.DrafterStub(channel)
        async with conversing(drafter) as first:
            await first.call.initial_metadata()
            error = await refusal(stub.Draft(iter([drafter_pb2.DraftRequest(hello=HELLO)])))
            assert error.code() is CODE.RESOURCE_EXHAUSTED
            assert "serves 1 verifiers already" in error.details()
            await first.call.done_writing()
            assert await first.call.read() is grpc.aio.EOF
        async with conversing(drafter) as second:
            await second.call.initial_metadata()
            assert not second.call.done()


async def test_a_branch_is_never_longer_than_the_drafter_allows(twin: Runner) -> None:
    async with drafting(twin, EngineConfig(max_draft_tokens=6)) as drafter:
        async with conversing(drafter) as stream:
            await stream.send(opens=[opening([5] * 20)])
            await stream.send(commits=[round_of(20, [9], draft_tokens=2**32 - 1)])
            assert len((await stream.branch())[1].ids) == 6
        await drafter.empty()


async def test_a_session_may_be_longer_than_the_draft_model_allows(twin: Runner) -> None:
    long = [5 + i % 100 for i in range(3 * MAX_LEN)]
    async with drafting(twin) as drafter:
        async with conversing(drafter) as stream:
            await stream.send(opens=[opening(long)])
            for base, ids in ((len(long), [9]), (len(long) + 1, [9] * (MAX_LEN + 1))):
                await stream.send(commits=[round_of(base, ids, draft_tokens=6)])
                assert len((await stream.branch())[1].ids) == 6
        await drafter.empty()


async def test_draining_keeps_sessions_and_takes_no_more(
    twin: Runner, prompt: list[int], text: list[int]
) -> None:
    async with drafting(twin) as drafter, conversing(drafter) as stream:
        await stream.send(opens=[opening(prompt)])
        await until(lambda: drafter.engine.live == 1)
        drafter.engine.stop_accepting()
        await stream.send(opens=[opening(prompt, session=2)])
        dropped = await stream.drop()
        assert (dropped.session, dropped.reason) == (2, "draining")
        await stream.send(commits=[round_of(len(prompt), text[:1])])
        assert list((await stream.branch())[1].ids) == text[1:5]
        async with open_channel(drafter.address) as channel:
            first = drafter_pb2.DraftRequest(hello=HELLO)
            error = await refusal(drafter_pb2_grpc.DrafterStub(channel).Draft(iter([first])))
            assert error.code() is CODE.UNAVAILABLE
            assert "draining" in error.details()
            watch = worker_pb2_grpc.WorkerStub(channel).WatchStatus(worker_pb2.WatchStatusRequest())
            assert not (await watch.read()).accepting
            watch.cancel()
        drafter.service.end()
        await stream.end()
        await drafter.empty()


some_ids = st.lists(st.integers(0, VOCAB - 1) | st.sampled_from([VOCAB, 2**32 - 1]), max_size=6)


sessions = {"session": st.integers(1, 3), "incarnation": st.integers(0, 2)}


odd = st.sampled_from([0.0, -1.0, 0.7, 1e-300, 1e300, float("nan"), float("inf")])


samplings = st.builds(
    types_pb2.SamplingParams,
    temperature=odd,
    top_k=st.sampled_from([0, 3, 2**32 - 1]),
    top_p=st.none() | odd,
    min_p=odd,
    repetition_penalty=st.none() | odd,
    logit_bias=st.dictionaries(st.sampled_from([0, 5, VOCAB, 2**32 - 1]), odd, max_size=2),
)


opens = st.builds(
    drafter_pb2.Open,
    **sessions,
    ids=some_ids | st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    sampling=st.none() | st.just(SAMPLING) | samplings,
    drawn=st.booleans(),
    draft_tokens=st.sampled_from([0, 1, 5, 70, 2**32 - 1]),
    fanout=st.sampled_from([0, 1, 3, 2**32 - 1]),
    least_chances=st.lists(st.floats(width=32), max_size=3),
)


commits = st.builds(
    drafter_pb2.Commit,
    **sessions,
    base=st.integers(0, 45) | st.just(2**32 - 1),
    path_hash=st.integers(0, 2**64 - 1),
    accepted=st.sampled_from([0, 1, 2**32 - 1]),
    ids=some_ids,
    draft_tokens=st.sampled_from([0, 1, 5, 70, 2**32 - 1]),
    verifying=st.integers(0, 3),
    fanout=st.integers(0, 3),
    least_chances=st.lists(st.floats(width=32), max_size=3),
)


messages = st.builds(
    drafter_pb2.DraftRequest,
    hello=st.none() | st.just(HELLO) | st.builds(drafter_pb2.Hello, vocab_size=st.integers(0, 5)),
    opens=st.lists(opens, max_size=3),
    commits=st.lists(commits, max_size=4),
    closes=st.lists(st.builds(drafter_pb2.Close, **sessions), max_size=2),
)


async def said(call: Any, talk: Sequence[drafter_pb2.DraftRequest]) -> grpc.StatusCode:
    """Says it all, the rest only if the beginning was accepted; the code of the stream's end."""
    for message in talk[:1]:
        await call.write(message)
    if not talk:
        await call.done_writing()
    await call.initial_metadata()
    if not call.done():
        for message in talk[1:]:
            await call.write(message)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = await call.code()
    return code


@settings(max_examples=30)
@given(talk=st.lists(messages, max_size=6))
async def test_no_verifier_on_this_machine_brings_the_drafter_down(
    talk: list[drafter_pb2.DraftRequest], twin: Runner, prompt: list[int], text: list[int]
) -> None:
    async with (
        serving_another(twin, prompt, text, lane=True) as drafter,
        conversing(drafter, lane=True) as stream,
    ):
        assert isinstance(stream, LaneStream)
        for message in talk:
            data = message.SerializeToString()
            stream.writer.write(HEAD.pack(len(data), 0.0) + data)
        stream.writer.write_eof()
        assert (await rest(stream.call)).details().endswith("it hung up")


@settings(max_examples=60)
@given(talk=st.lists(messages, max_size=6), greets=st.booleans())
async def test_no_verifier_brings_the_drafter_down(
    talk: list[drafter_pb2.DraftRequest],
    greets: bool,
    twin: Runner,
    prompt: list[int],
    text: list[int],
) -> None:
    async with (
        serving_another(twin, prompt, text) as drafter,
        open_channel(drafter.address) as channel,
    ):
        first = [drafter_pb2.DraftRequest(hello=HELLO)] if greets else []
        allowed = {CODE.OK, CODE.INVALID_ARGUMENT, CODE.FAILED_PRECONDITION}
        async with asyncio.timeout(20):
            call = drafter_pb2_grpc.DrafterStub(channel).Draft()
            assert await said(call, [*first, *talk]) in allowed
