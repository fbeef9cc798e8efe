"""The verifier over the wire."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.v1 import types_pb2, verifier_pb2, worker_pb2

from common.model.runner import Runner
from tests.rpc.services import (
    ask,
    braked,
    drafting,
    ending,
    refusal,
    verifying,
)
from tests.rpc.verifier_texts import TOKENS, all_warm, check_counts, paired, status_of
from tests.tiny_models import MAX_LEN, VOCAB
from tests.waiting import until
from verifier.config import EngineConfig

CODE = grpc.StatusCode
pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize("fanout", [0, EngineConfig.draft_fanout], ids=["lockstep", "ahead"])
async def test_ids_over_the_wire_are_those_of_the_engine(
    patient: None,
    target: Runner,
    twin: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
    fanout: int,
) -> None:
    config = EngineConfig(draft_fanout=fanout)
    async with verifying(target, config) as verifier, drafting(twin) as drafter:
        await paired(verifier, prompts[0], drafter.address)
        alone = await asyncio.gather(*(verifier.generate(ask(p, TOKENS)) for p in prompts))
        with braked(target) as brake:
            texts = [
                asyncio.ensure_future(verifier.generate(ask(p, TOKENS, drafter.address)))
                for p in prompts
            ]
            while drafter.engine.live < len(prompts):
                brake.let(1)
                await asyncio.sleep(0.02)
            await until(lambda: all_warm(drafter))  # however slow the machine
            brake.open()
            helped = await asyncio.gather(*texts)
        await verifier.empty()
        await drafter.empty()
        assert fanout or not verifier.proposer.news.stale, "what was waited for is what came"
    assert [text.ids for text in alone] == plain
    assert [text.ids for text in helped] == plain
    for prompt, text in zip(prompts * 2, alone + helped, strict=True):
        check_counts(text, prompt)
        assert text.complete is not None
        assert text.complete.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert {text.speculation.method for text in alone} == {"plain"}
    assert {text.speculation.rounds for text in alone} == {TOKENS}
    assert {text.speculation.method for text in helped} == {"draft"}
    for text in helped:
        once = text.sources[text.sources.index(types_pb2.TOKEN_SOURCE_ACCEPTED) :]
        accepted = once.count(types_pb2.TOKEN_SOURCE_ACCEPTED)
        assert accepted > len(once) / 2, "once its mirror is warm, a twin drafts well"


async def test_stop_tokens_and_the_end_of_sequence(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        stop = plain[1][9]
        stopped = await verifier.generate(ask(prompts[1], TOKENS, stop_token_ids=[stop]))
        biased = types_pb2.SamplingParams(logit_bias={2: 1000.0})
        ended = ask(prompts[1], 5, sampling=biased)
        ended.ignore_eos = False
        text = await verifier.generate(ended)
        await verifier.empty()
    assert stopped.ids == plain[1][: plain[1].index(stop) + 1]
    assert text.ids == [2]
    for one in (stopped, text):
        assert one.complete is not None
        assert one.complete.finish_reason == types_pb2.FINISH_REASON_STOP


async def test_a_cancelled_call_frees_both_tiers(
    target: Runner, twin: Runner, prompts: list[list[int]]
) -> None:
    async with verifying(target) as verifier, drafting(twin) as drafter:
        await paired(verifier, prompts[0], drafter.address)
        with braked(target) as brake:
            call = verifier.stub.Generate(ask(prompts[2], 400, drafter.address))
            brake.let(12)
            while not (await call.read()).tokens.ids:
                pass
            await until(lambda: drafter.engine.live == 1)
            call.cancel()
            await until(lambda: not verifier.engine.live)
            brake.open()
            await verifier.empty()
            await drafter.empty()


async def test_a_deadline_frees_the_sequence(target: Runner, prompts: list[list[int]]) -> None:
    async with verifying(target) as verifier:
        with braked(target) as brake:
            error = await refusal(verifier.stub.Generate(ask(prompts[2], 400), timeout=0.3))
            await until(lambda: not verifier.engine.live)
            brake.open()
        assert error.code() is CODE.DEADLINE_EXCEEDED
        await verifier.empty()


async def test_overload_is_refused_at_once(target: Runner, prompts: list[list[int]]) -> None:
    config = EngineConfig(max_running=2, max_waiting=1)
    async with verifying(target, config) as verifier:
        with braked(target) as brake:
            running = [asyncio.create_task(verifier.generate(ask(p, 8))) for p in prompts[:3]]
            await until(lambda: verifier.engine.live == 3)
            error = await refusal(verifier.stub.Generate(ask(prompts[3], 8), timeout=5))
            assert error.code() is CODE.RESOURCE_EXHAUSTED
            assert "retry later" in error.details()
            brake.open()
            assert [len(text.ids) for text in await asyncio.gather(*running)] == [8, 8, 8]
        await verifier.generate(ask(prompts[3], 8))
        await verifier.empty()


SPECULATION = types_pb2.SpeculationOptions


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (ask([], 4), CODE.INVALID_ARGUMENT, "prompt_ids: is empty"),
        (ask([VOCAB], 4), CODE.INVALID_ARGUMENT, f"prompt_ids: ids must be below {VOCAB}"),
        (ask([5], 0), CODE.INVALID_ARGUMENT, "max_tokens: must be at least 1"),
        (ask([5], MAX_LEN), CODE.INVALID_ARGUMENT, f"max_tokens: .*at most {MAX_LEN}"),
        (
            ask([5], 4, speculation=SPECULATION(draft_tokens=99)),
            CODE.INVALID_ARGUMENT,
            "speculation.draft_tokens: must be 0 to 16, got 99",
        ),
        (
            ask([5], 4, speculation=SPECULATION(lookahead={"ngram": 9})),
            CODE.INVALID_ARGUMENT,
            "speculation.lookahead.ngram: must be 0, or 2 to 8, got 9",
        ),
        (
            ask([5], 4, *(f"127.0.0.1:{port}" for port in range(1, 10))),
            CODE.INVALID_ARGUMENT,
            "drafters: at most 8, got 9",
        ),
        (
            ask([5], 4, speculation=SPECULATION(method="medusa")),
            CODE.FAILED_PRECONDITION,
            "speculation.method: this verifier has plain, draft, .*not medusa",
        ),
        (
            ask([5], 4, speculation=SPECULATION(method="draft+plain")),
            CODE.INVALID_ARGUMENT,
            "speculation.method: draft.plain: joins different methods",
        ),
        (
            ask([5], 4, sampling=types_pb2.SamplingParams(top_p=1.5)),
            CODE.INVALID_ARGUMENT,
            r"sampling.top_p: must be in \(0, 1\], got 1.5",
        ),
        (
            ask([5], 4, sampling=types_pb2.SamplingParams(logit_bias={VOCAB: 1.0})),
            CODE.INVALID_ARGUMENT,
            "sampling.logit_bias: token ids must be in",
        ),
    ],
)
async def test_bad_requests_name_the_field(
    request_: verifier_pb2.VerifierGenerateRequest,
    code: grpc.StatusCode,
    words: str,
    target: Runner,
) -> None:
    async with verifying(target) as verifier:
        error = await refusal(verifier.stub.Generate(request_, timeout=10))
        assert error.code() is code
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(error.details())
        assert verifier.engine.live == 0


async def test_who_means_other_numerics_is_sent_elsewhere(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        meant = ask(prompts[1], TOKENS, numerics_fingerprint=target.fingerprint)
        other = ask([VOCAB], 4, session="s", epoch=9, numerics_fingerprint="int8")
        error = await refusal(verifier.stub.Generate(other, timeout=10))
        assert error.code() is CODE.UNAVAILABLE, "though the id is none of this model's"
        assert "other numerics" in error.details()
        assert verifier.engine.load().steps == 0
        assert (await verifier.generate(meant)).ids == plain[1]


async def test_draining_finishes_what_runs_and_refuses_the_rest(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        with braked(target) as brake:
            running = asyncio.create_task(verifier.generate(ask(prompts[1], TOKENS)))
            await until(lambda: verifier.engine.live == 1)
            assert (await status_of(verifier)).accepting
            answer = await verifier.worker.Drain(worker_pb2.DrainRequest(grace_s=7))
            assert answer.remaining == 1
            await verifier.worker.Drain(worker_pb2.DrainRequest())
            assert verifier.drained == [7, None]
            error = await refusal(verifier.stub.Generate(ask(prompts[0], 4), timeout=5))
            assert error.code() is CODE.UNAVAILABLE
            assert "draining" in error.details()
            assert not (await status_of(verifier)).accepting
            brake.open()
            assert (await running).ids == plain[1]


async def test_health_serves_then_does_not(target: Runner) -> None:
    serving = health_pb2.HealthCheckResponse
    async with verifying(target) as verifier:
        stub = health_pb2_grpc.HealthStub(verifier.channel)
        for service in ("", "paceline.v1.Verifier", "paceline.v1.Worker"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert (await stub.Check(request)).status == serving.SERVING
        verifier.server.health.drain()
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == serving.NOT_SERVING


async def test_status_is_told_at_once_and_at_every_interval(
    target: Runner, prompts: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        for interval_ms in (1, 49):
            request = worker_pb2.WatchStatusRequest(interval_ms=interval_ms)
            error = await refusal(verifier.worker.WatchStatus(request))
            assert error.code() is CODE.INVALID_ARGUMENT
            assert error.details() == f"interval_ms: must be 0 or at least 50, got {interval_ms}"
        call = verifier.worker.WatchStatus(worker_pb2.WatchStatusRequest(interval_ms=50))
        first = await call.read()
        await verifier.generate(ask(prompts[0], 9))
        await verifier.empty()
        while (last := await call.read()).tokens < 9:
            pass
        call.cancel()
    blocks = target.pool.blocks.count
    assert (first.kv_blocks_total, first.kv_blocks_free) == (blocks, blocks)
    assert (first.steps, first.tokens) == (0, 0)
    assert (last.steps, last.tokens, last.running, last.waiting) == (9, 9, 0, 0)
    assert last.step_ms > 0
    assert last.kv_blocks_free == blocks


numbers = st.one_of(
    st.sampled_from([0, 0.0, 1.0, -1.0, 1e-300, 1e300, float("nan"), float("inf")]),
    st.floats(0, 2),
)


ids = st.one_of(st.integers(0, VOCAB - 1), st.sampled_from([VOCAB, 2**31, 2**32 - 1]))


samplings = st.builds(
    types_pb2.SamplingParams,
    temperature=numbers,
    top_k=st.sampled_from([0, 1, 5, VOCAB, 2**32 - 1]),
    top_p=st.none() | numbers,
    min_p=numbers,
    repetition_penalty=st.none() | numbers,
    logit_bias=st.dictionaries(ids, numbers, max_size=3),
    seed=st.none() | st.integers(0, 2**64 - 1),
)


sensible_samplings = st.builds(
    types_pb2.SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 1e-30, 0.7, 1e300]),
    top_k=st.sampled_from([0, 1, 2**32 - 1]),
    top_p=st.sampled_from([None, 1e-300, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 1e-300, 1.0]),
    repetition_penalty=st.sampled_from([None, 1e-300, 1.3, 1e300]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-1e300, 0.5, 1e300])),
)


requests = st.builds(
    verifier_pb2.VerifierGenerateRequest,
    request_id=st.text(max_size=5),
    prompt_ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
    | st.lists(ids, max_size=4),
    max_tokens=st.sampled_from([1, 2, 6]) | st.sampled_from([0, MAX_LEN, 2**32 - 1]),
    sampling=st.none() | sensible_samplings | samplings,
    speculation=st.none()
    | st.builds(
        types_pb2.SpeculationOptions,
        method=st.sampled_from(["", "auto", "plain", "draft", "lookahead", "eagle", "magic", "\0"]),
        draft_tokens=st.sampled_from([0, 1, 16, 17, 2**32 - 1]),
        lookahead=st.none()
        | st.builds(
            types_pb2.LookaheadOptions,
            window=st.sampled_from([0, 1, 64, 65]),
            ngram=st.sampled_from([0, 2, 8, 9]),
            guesses=st.sampled_from([0, 1, 64, 2**32 - 1]),
        ),
        acceptance=st.sampled_from([0, 1, 2, 3, 77]),
    ),
    stop_token_ids=st.lists(ids, max_size=3),
    ignore_eos=st.booleans(),
    drafters=st.lists(
        st.builds(
            verifier_pb2.DrafterEndpoint,
            address=st.sampled_from(["", ":", "127.0.0.1:1", "no such host", "\0", "dns:///"]),
        ),
        max_size=2,
    ),
)


@settings(max_examples=60)
@given(messages=st.lists(requests, min_size=1, max_size=4))
async def test_no_request_brings_the_verifier_down(
    messages: list[verifier_pb2.VerifierGenerateRequest],
    target: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
) -> None:
    allowed = {CODE.INVALID_ARGUMENT, CODE.FAILED_PRECONDITION, CODE.RESOURCE_EXHAUSTED}
    async with verifying(target) as verifier:
        calls = [verifier.stub.Generate(message, timeout=30) for message in messages]
        codes = await asyncio.gather(*map(ending, calls))
        assert set(codes) <= allowed | {CODE.OK}
        text = await verifier.generate(ask(prompts[1], 10))
        assert text.ids == plain[1][:10]
        await verifier.empty()
