"""The gateway over real servers: what clients see, what verifiers get."""

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from paceline.v1 import inference_pb2, types_pb2, verifier_pb2, worker_pb2

from common import errors
from common.tokenizer import Tokenizer
from gateway import fleet, workers
from gateway.gain import Gains
from gateway.prompt_digest import digest
from tests.rpc.gateways import Gateway, gateway, ids_of
from tests.scripted_workers import CACHED, DRAFTED, NUMERICS, ScriptedWorker, serving
from tests.waiting import until

A, R, B = (
    types_pb2.TOKEN_SOURCE_ACCEPTED,
    types_pb2.TOKEN_SOURCE_RECOVERED,
    types_pb2.TOKEN_SOURCE_BONUS,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    loaded = Tokenizer.load(Path(__file__).parents[2] / "models" / "demo" / "target")
    assert loaded is not None
    return loaded


def verifier_for(tokenizer: Tokenizer, **description) -> ScriptedWorker:
    return ScriptedWorker(tokenizer_fingerprint=tokenizer.fingerprint, **description)


async def test_ids_come_back_with_their_sources_and_the_verifiers_numbers() -> None:
    verifier = ScriptedWorker()
    verifier.messages = [([5], [R]), ([6, 7, 8], [A, A, B]), ([9], [R])]
    async with serving(verifier), gateway(verifier.address) as target:
        answer = await target.generate(
            request_id="r1",
            token_ids=ids_of(1, 2, 3),
            max_tokens=5,
            sampling=types_pb2.SamplingParams(temperature=0.5, seed=2**64 - 1),
            speculation=types_pb2.SpeculationOptions(lookahead={"window": 7, "ngram": 5}),
            stop_token_ids=[77],
            ignore_eos=True,
        )
    assert answer.started == inference_pb2.GenerationStarted(
        request_id="r1",
        model="demo",
        seed=2**64 - 1,
        prompt_tokens=3,
        numerics=NUMERICS,
        prompt_digest=digest([1, 2, 3]),
    )
    assert [list(chunk.token_ids) for chunk in answer.chunks] == [[5], [6, 7, 8], [9]]
    assert [list(chunk.sources) for chunk in answer.chunks] == [[R], [A, A, B], [R]]
    assert answer.text == ""
    assert answer.complete.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert answer.complete.usage.cached_tokens == 3
    assert list(answer.complete.speculation.accepted_per_position) == [3, 2]
    (request,) = verifier.requests
    assert list(request.prompt_ids) == [1, 2, 3]
    assert (request.max_tokens, request.ignore_eos) == (5, True)
    assert list(request.stop_token_ids) == [77]
    assert request.sampling.seed == 2**64 - 1
    assert request.sampling.temperature == 0.5
    assert request.speculation.method == "auto", "the verifier chooses"
    assert request.speculation.lookahead == types_pb2.LookaheadOptions(window=7, ngram=5)


async def test_text_in_text_out_and_a_seed_is_drawn(tokenizer: Tokenizer) -> None:
    text = "Grüße 😀 and more"
    verifier = verifier_for(tokenizer)
    verifier.messages = [([id_], [R]) for id_ in tokenizer.encode(text)]
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        answers = [await target.generate(text="Hello") for _ in range(2)]
    assert [answer.text for answer in answers] == [text, text]
    assert not any("\ufffd" in chunk.text for chunk in answers[0].chunks)
    assert answers[0].started.seed != answers[1].started.seed
    assert [r.sampling.seed for r in verifier.requests] == [a.started.seed for a in answers]
    prompt = tokenizer.encode("Hello")
    assert list(verifier.requests[0].prompt_ids) == prompt
    assert verifier.requests[0].max_tokens == 256 - len(prompt)
    assert re.fullmatch("[0-9a-f]{32}", answers[0].started.request_id)


async def test_a_stop_string_cuts_text_and_ids_and_cancels_the_verifier(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("first line\nSTOP here and never here")
    verifier = verifier_for(tokenizer)
    verifier.messages = [(ids[:1], [R]), (ids[1:], [A] * (len(ids) - 2) + [B])]
    verifier.hold = asyncio.Event()
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        answer = await target.generate(text="one two three four", stop=["STOP", "absent"])
        await asyncio.wait_for(verifier.cancelled.wait(), 5)
    assert answer.text == "first line\n"
    assert tokenizer.decode(answer.ids).endswith("STOP")
    assert answer.ids == ids[: len(answer.ids)]
    assert answer.complete.stop == "STOP"
    assert answer.complete.finish_reason == types_pb2.FINISH_REASON_STOP
    assert answer.complete.usage.completion_tokens == len(answer.ids)
    assert answer.complete.usage.prompt_tokens == len(tokenizer.encode("one two three four"))
    assert answer.complete.usage.cached_tokens == CACHED
    stats = answer.complete.speculation
    assert (stats.rounds, stats.drafted_tokens) == (2, 2 * DRAFTED)
    accepted = len(answer.ids) - 1
    assert stats.accepted_tokens == accepted < len(ids) - 2, "what came after it does not count"
    assert list(stats.accepted_per_position) == [1] * accepted


async def test_the_last_chunk_counts_no_more_than_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("first line\nSTOP here and never here")
    verifier = verifier_for(tokenizer)
    verifier.messages = [(ids[:1], [R]), (ids[1:], [R] * (len(ids) - 1))]
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        answer = await target.generate(text="one two three four", stop=["STOP"])
    assert len(answer.ids) < len(ids)
    first, last = answer.chunks
    assert (first.rounds, first.drafted_tokens) == (1, DRAFTED)
    stats = answer.complete.speculation
    assert (last.rounds, last.drafted_tokens) == (stats.rounds, stats.drafted_tokens)
    assert last.rounds == len(answer.ids)


async def test_chat_uses_the_template_and_names_what_it_refuses(tokenizer: Tokenizer) -> None:
    turns = [inference_pb2.ChatMessage(role="user", content="hi")]
    verifier = verifier_for(tokenizer)
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        await target.generate(chat=inference_pb2.ChatMessages(messages=turns))
    expected = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert list(verifier.requests[0].prompt_ids) == expected


@pytest.mark.parametrize(
    ("request_", "code", "message"),
    [
        ({"token_ids": ids_of(9999)}, "INVALID_ARGUMENT", "token_ids: ids must be in [0, 4095]"),
        ({"token_ids": ids_of()}, "INVALID_ARGUMENT", "token_ids: must have at least 1 token"),
        ({}, "INVALID_ARGUMENT", "input: one of text, token_ids and chat must be set"),
        ({"text": "x"}, "FAILED_PRECONDITION", "send token_ids"),
        ({"token_ids": ids_of(1), "max_tokens": 256}, "INVALID_ARGUMENT", "must be at most 255"),
        ({"token_ids": ids_of(1), "model": "other"}, "NOT_FOUND", "served: demo"),
        ({"token_ids": ids_of(1), "model": "x" * 9999}, "NOT_FOUND", f"no {'x' * 256!r} here"),
        (
            {"token_ids": ids_of(1), "sampling": types_pb2.SamplingParams(top_p=1.5)},
            "INVALID_ARGUMENT",
            "sampling.top_p: must be in (0, 1], got 1.5",
        ),
        (
            {"token_ids": ids_of(1), "speculation": types_pb2.SpeculationOptions(method="magic")},
            "INVALID_ARGUMENT",
            "speculation.method: must be one of auto, plain, draft",
        ),
        (
            {"token_ids": ids_of(1), "speculation": types_pb2.SpeculationOptions(method="draft")},
            "FAILED_PRECONDITION",
            "this deployment has auto, plain; it cannot run draft: no drafter is configured",
        ),
    ],
)
async def test_bad_input(request_: dict, code: str, message: str) -> None:
    verifier = ScriptedWorker()
    async with serving(verifier), gateway(verifier.address) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(**request_)
    assert caught.value.code().name == code
    assert message in caught.value.details()
    assert verifier.requests == []


async def test_the_verifiers_refusals_pass_through() -> None:
    verifier = ScriptedWorker()
    refusal = errors.FailedPrecondition("speculation.acceptance: only coupled is offered")
    async with serving(verifier), gateway(verifier.address) as target:
        for verifier.error in (refusal, errors.ResourceExhausted("no blocks are free")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await target.generate(
                    token_ids=ids_of(1),
                    speculation=types_pb2.SpeculationOptions(
                        acceptance=types_pb2.ACCEPTANCE_TYPICAL
                    ),
                )
            assert caught.value.code().name == verifier.error.code
            assert caught.value.details() == str(verifier.error)
    assert verifier.requests[0].speculation.acceptance == types_pb2.ACCEPTANCE_TYPICAL


async def test_drafters_are_offered_only_where_they_fit(caplog: pytest.LogCaptureFixture) -> None:
    verifier = ScriptedWorker(tokenizer_fingerprint="f")
    good = ScriptedWorker(tier="drafter", tokenizer_fingerprint="f")
    foreign = ScriptedWorker(tier="drafter", tokenizer_fingerprint="g")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(verifier, good, foreign))
        addresses = (foreign.address, good.address)
        target = await stack.enter_async_context(gateway(verifier.address, drafters=addresses))
        await target.generate(token_ids=ids_of(1))
        plain = types_pb2.SpeculationOptions(method="plain")
        await target.generate(token_ids=ids_of(1), speculation=plain)
        await good.stop()
        handle = target.fleet._drafters.listed[good.address]
        await until(lambda: not handle.present)
        await target.generate(token_ids=ids_of(1))
    drafting, without, after = verifier.requests
    assert [each.address for each in drafting.drafters] == [good.address]
    assert (without.speculation.method, list(without.drafters)) == ("plain", [])
    assert (after.speculation.method, list(after.drafters)) == ("auto", [])
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told.count("drafter does not fit") == 1
    assert told.count("drafter lost") == 1


async def test_what_pairs_gain_is_looked_through_once_for_many_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = []

    class Counted(Gains):
        def __init__(self, *known: Any) -> None:
            looked.append(known)
            super().__init__(*known)

    monkeypatch.setattr(fleet, "Gains", Counted)
    monkeypatch.setattr(fleet, "_GAINS_S", 60.0)
    verifier = ScriptedWorker(tokenizer_fingerprint="f")
    late = ScriptedWorker(tier="drafter", tokenizer_fingerprint="f")
    async with serving(verifier, late), gateway(verifier.address) as target:
        model = target.fleet.catalogue.resolve("demo")
        assert [target.fleet.place(model, "auto").drafters for _ in range(3)] == [()] * 3
        target.fleet.update("drafter", [late.address])
        await until(lambda: target.fleet._drafters.listed[late.address].present)
        assert target.fleet.place(model, "auto").drafters == (late.address,), "new, and offered"
        assert len(looked) == 1
        monkeypatch.setattr(fleet, "_GAINS_S", 0.0)
        target.fleet.go_on(model, "auto", NUMERICS, tokens=1)
    assert len(looked) == 2


async def test_ids_go_only_to_verifiers_that_read_them_alike(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """As half-way through a rollout that changes the model under its name."""
    ours = verifier_for(tokenizer)
    others = [
        ScriptedWorker(tokenizer_fingerprint="other", max_model_len=8),
        verifier_for(tokenizer, vocab_size=2000, max_model_len=8),
        ScriptedWorker(tokenizer_fingerprint="other", vocab_size=2000, max_model_len=8),
    ]
    ours.status.running = 5  # all others look idle
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(ours, *others))
        addresses = [each.address for each in (*others, ours)]
        target = await stack.enter_async_context(gateway(*addresses, tokenizer=tokenizer))
        handle = target.fleet.verifier(ours.address)
        await until(lambda: handle.candidate.load.running == 5)
        (model,) = (await target.stub.ListModels(inference_pb2.ListModelsRequest())).models
        assert (model.vocab_size, model.max_model_len) == (4096, 256)
        await target.generate(text="Once upon a time there was")
        await target.generate(token_ids=ids_of(1, 4095))
        await target.generate(token_ids=ids_of(1), session_id="s")
    assert len(ours.requests) == 3
    assert all(each.requests == [] for each in others)
    told = [record for record in caplog.records if "different vocabularies" in record.message]
    assert len(told) == 1
    assert told[0].model == "demo"


async def test_not_serving_until_a_verifier_is_there_and_it_may_come_back() -> None:
    verifier = ScriptedWorker()
    await verifier.start()
    port = int(verifier.address.rpartition(":")[2])
    await verifier.stop()
    async with gateway(verifier.address, ready=False) as target:
        assert not await target.serving()
        for call in (
            target.generate(token_ids=ids_of(1)),
            target.stub.ListModels(inference_pb2.ListModelsRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert verifier.address in caught.value.details()

        handle = target.fleet.verifier(verifier.address)
        await verifier.start(port)
        await until(lambda: handle.present)
        assert await target.serving()
        assert (await target.generate(token_ids=ids_of(1))).started.model == "demo"

        await verifier.stop()
        await until(lambda: not handle.present)
        assert not await target.serving()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert verifier.address in caught.value.details()


async def test_a_verifier_lost_half_way_is_unavailable_and_named() -> None:
    verifier = ScriptedWorker()
    verifier.messages, verifier.hold = [([5], [R])], asyncio.Event()
    async with serving(verifier), gateway(verifier.address) as target:
        call = target.stub.Generate(inference_pb2.GenerateRequest(token_ids=ids_of(1)))
        assert list((await call.read()).chunk.token_ids) == [5]
        await verifier.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert verifier.address in caught.value.details()


class Brief(ScriptedWorker):
    """A verifier whose last token comes with its report."""

    async def Generate(self, request, context):
        end = self._complete(request)
        for id_, complete in ((5, None), (6, end)):
            tokens = verifier_pb2.CommittedTokens(ids=[id_], sources=[R])
            yield verifier_pb2.VerifierGenerateResponse(tokens=tokens, complete=complete)


@pytest.mark.parametrize("stopped", [False, True])
async def test_what_happens_together_is_one_message(stopped: bool, tokenizer: Tokenizer) -> None:
    """The start with the first chunk and the end with the last, whoever says that it is the end."""
    verifier = Brief(tokenizer_fingerprint=tokenizer.fingerprint)
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        stop = [tokenizer.decode([6])] if stopped else []
        request = inference_pb2.GenerateRequest(token_ids=ids_of(1), stop=stop)
        messages = [message async for message in target.stub.Generate(request)]
    parts = [[field.name for field, _ in message.ListFields()] for message in messages]
    assert parts == [["started", "chunk"], ["chunk", "complete"]]
    assert [list(message.chunk.token_ids) for message in messages] == [[5], [6]]
    assert bool(messages[-1].complete.stop) == stopped


async def test_cancelling_frees_the_verifier_and_the_slot() -> None:
    verifier = ScriptedWorker()
    verifier.messages, verifier.hold = [([5], [R])], asyncio.Event()
    async with serving(verifier), gateway(verifier.address) as target:
        call = target.stub.Generate(inference_pb2.GenerateRequest(token_ids=ids_of(1)))
        await call.read()
        call.cancel()
        await asyncio.wait_for(verifier.cancelled.wait(), 5)
        await until(lambda: target.admission.running == 0)


async def test_the_deadline_passes_on_with_a_margin() -> None:
    verifier = ScriptedWorker()
    verifier.hold = asyncio.Event()
    async with serving(verifier), gateway(verifier.address) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1), deadline_s=0.5)
        await asyncio.wait_for(verifier.cancelled.wait(), 5)
        verifier.hold.set()
        await target.generate(token_ids=ids_of(1), deadline_s=None)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    short, none = verifier.remaining_s
    assert short is not None
    assert 0 < short < 0.46
    assert none is not None
    assert 50 < none < 60


@pytest.mark.parametrize("deadline_s", [None, 30])
async def test_a_generation_ends_where_the_gateway_sets_the_limit(deadline_s: float | None) -> None:
    verifier = ScriptedWorker()
    verifier.messages, verifier.hold = [([5], [R])], asyncio.Event()
    async with serving(verifier), gateway(verifier.address, max_generation_s=0.4) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1), deadline_s=deadline_s)
        await asyncio.wait_for(verifier.cancelled.wait(), 5)
        await until(lambda: target.admission.running == 0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.details().startswith("the generation took longer than 0.4 s")
    assert "max_generation_s" in caught.value.details()


async def test_a_client_that_stopped_reading_does_not_keep_its_slot() -> None:
    verifier = ScriptedWorker()
    verifier.messages = [([5] * 10_000, [R] * 10_000)] * 2_000
    async with serving(verifier), gateway(verifier.address, max_generation_s=1) as target:
        call = target.stub.Generate(inference_pb2.GenerateRequest(token_ids=ids_of(1)))
        await until(lambda: target.admission.running == 1)
        await until(lambda: target.admission.running == 0)
        call.cancel()


async def test_a_client_that_never_reads_holds_up_nobody_else() -> None:
    verifier = ScriptedWorker()
    verifier.messages = [([5] * 10_000, [R] * 10_000)] * 2_000
    async with serving(verifier), gateway(verifier.address, max_concurrent=64) as target:
        request = inference_pb2.GenerateRequest(token_ids=ids_of(1))
        stuck = target.stub.Generate(request, timeout=60)
        await until(lambda: len(verifier.requests) == 1)
        verifier.messages = [([5], [R])] * 20
        async with asyncio.timeout(30):
            others = [target.generate(token_ids=ids_of(1), deadline_s=60) for _ in range(63)]
            answers = await asyncio.gather(*others)
        assert all(answer.ids == [5] * 20 for answer in answers)
        assert target.admission.running == 1
        stuck.cancel()
        await until(lambda: target.admission.running == 0)


async def test_overload_is_refused_at_once_and_others_go_on() -> None:
    verifier = ScriptedWorker()
    verifier.messages, verifier.hold = [([5], [R])], asyncio.Event()
    async with serving(verifier), gateway(verifier.address, max_concurrent=2) as target:
        running = [asyncio.create_task(target.generate(token_ids=ids_of(1))) for _ in range(2)]
        await until(lambda: len(verifier.requests) == 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in (
            target.stub.Tokenize(inference_pb2.TokenizeRequest(text="x")),
            target.stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[1])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        verifier.hold.set()
        assert [answer.ids for answer in await asyncio.gather(*running)] == [[5], [5]]


async def test_requests_that_come_together_are_spread() -> None:
    first, second = ScriptedWorker(), ScriptedWorker()
    for each in (first, second):
        each.hold = asyncio.Event()
    async with serving(first, second), gateway(first.address, second.address) as target:
        running = [asyncio.create_task(target.generate(token_ids=ids_of(1))) for _ in range(8)]
        await until(lambda: len(first.requests) + len(second.requests) == 8)
        for each in (first, second):
            each.hold.set()
        await asyncio.gather(*running)
    assert len(first.requests) == len(second.requests) == 4


async def test_a_session_returns_to_its_verifier() -> None:
    first, second = ScriptedWorker(), ScriptedWorker()
    async with serving(first, second), gateway(first.address, second.address) as target:
        await target.generate(token_ids=ids_of(1), session_id="s")
        served, other = (first, second) if first.requests else (second, first)
        served.status.running = 5
        handle = target.fleet.verifier(served.address)
        await until(lambda: handle.candidate.load.running == 5)
        await target.generate(token_ids=ids_of(1), session_id="s")
        await target.generate(token_ids=ids_of(1), session_id="new")
    assert (len(served.requests), len(other.requests)) == (2, 1)


async def test_models_are_listed_with_what_they_can_do(tokenizer: Tokenizer) -> None:
    spoken, bare = verifier_for(tokenizer), ScriptedWorker(model="bare", max_model_len=32)
    async with (
        serving(spoken, bare),
        gateway(spoken.address, bare.address, tokenizer=tokenizer) as target,
    ):
        listed = await target.stub.ListModels(inference_pb2.ListModelsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1))
        await target.generate(token_ids=ids_of(1), model="bare")
    assert caught.value.details() == "model: must name one of bare, demo"
    assert [model.name for model in listed.models] == ["bare", "demo"]
    assert [model.has_tokenizer for model in listed.models] == [False, True]
    assert [model.has_chat_template for model in listed.models] == [False, True]
    assert [list(model.methods) for model in listed.models] == [["plain"], ["plain"]]
    assert [model.max_model_len for model in listed.models] == [32, 256]
    assert len(bare.requests) == 1


async def test_tokenize_and_detokenize(tokenizer: Tokenizer) -> None:
    verifier = verifier_for(tokenizer)
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        encoded = await target.stub.Tokenize(inference_pb2.TokenizeRequest(text="Grüße 😀"))
        decoded = await target.stub.Detokenize(
            inference_pb2.DetokenizeRequest(token_ids=[*encoded.token_ids, 2])
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[4096]))
    assert decoded.text == "Grüße 😀"
    assert caught.value.details() == "token_ids: ids must be in [0, 4095], got 4096"


async def refusals(target: Gateway, **prompt: Any) -> list[str]:
    """What is said of a prompt that is refused, to generate after and to tokenize."""
    said = []
    for call in (
        target.generate(**prompt),
        target.stub.Tokenize(inference_pb2.TokenizeRequest(**prompt)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        said.append(str(caught.value.details()))
    return said


async def test_what_cannot_fit_is_refused_before_it_is_encoded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object) -> None:
        raise AssertionError("it was encoded")

    monkeypatch.setattr(Tokenizer, "encode", encode)
    monkeypatch.setattr(Tokenizer, "apply_chat_template", encode)
    most = 256 * tokenizer.longest_token_chars
    text = "x" * (most + 1)
    chat = inference_pb2.ChatMessages(
        messages=[inference_pb2.ChatMessage(role="user", content=text)]
    )
    turns = inference_pb2.ChatMessages(messages=[inference_pb2.ChatMessage()] * 4097)
    verifier = verifier_for(tokenizer)
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        for field, limit, prompt in (
            ("text", f"{most} characters", {"text": text}),
            ("chat.messages", f"{most} characters", {"chat": chat}),
            ("chat.messages", "4096 turns", {"chat": turns}),
        ):
            for said in await refusals(target, **prompt):
                assert re.match(f"{field}: must .*at most {limit}", said)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=[5] * 257))
        assert caught.value.details() == "token_ids: must be at most 256 ids, got 257"
    assert verifier.requests == []


async def test_text_has_only_tokens_that_the_model_has(tokenizer: Tokenizer) -> None:
    """A tokenizer may have more than the model has rows for."""
    (id_,) = tokenizer.encode("hi")
    verifier = verifier_for(tokenizer, vocab_size=id_)
    chat = inference_pb2.ChatMessages(
        messages=[inference_pb2.ChatMessage(role="user", content="hi")]
    )
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        for field, prompt in (("text", {"text": "hi"}), ("chat.messages", {"chat": chat})):
            for said in await refusals(target, **prompt):
                assert said.startswith(f"{field}: ids must be in [0, {id_ - 1}], got ")
    assert verifier.requests == []


async def test_no_text_is_a_prompt_where_its_tokenizer_begins_texts_with_a_token(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = verifier_for(tokenizer)
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        nothing = inference_pb2.TokenizeRequest(text="")
        assert not (await target.stub.Tokenize(nothing)).token_ids
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(text="")
        assert caught.value.details() == "text: must have at least 1 token, got 0"
        monkeypatch.setattr(tokenizer, "encode", lambda text: [1])
        assert list((await target.stub.Tokenize(nothing)).token_ids) == [1]
        await target.generate(text="")
    assert [list(each.prompt_ids) for each in verifier.requests] == [[1]]


async def test_what_is_resumed_makes_no_request_too_large(tokenizer: Tokenizer) -> None:
    verifier = verifier_for(tokenizer, max_model_len=600_000)
    most, begun = ids_of(*[1000] * 524_000), [1000] * 10_000
    resume = inference_pb2.Resume(
        token_ids=begun, sources=[R] * len(begun), rounds=1, numerics=NUMERICS
    )
    fields = {"sampling": types_pb2.SamplingParams(seed=1), "max_tokens": 20_000}
    more = [1000] * 525_000
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        await target.generate(token_ids=most, **fields)
        await target.generate(token_ids=most, resume=resume, request_id="r" * 256, **fields)
        for call in (
            target.generate(token_ids=ids_of(*more), **fields),
            target.generate(token_ids=ids_of(*more), resume=resume, **fields),
            target.stub.Tokenize(inference_pb2.TokenizeRequest(text="x" * 1_050_000)),
            target.stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=more)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            rule = f"request: must have at most {1 << 20} bytes, got 10"
            assert caught.value.details().startswith(rule)
    assert len(verifier.requests) == 2


class Newer(ScriptedWorker):
    """A verifier whose report has numbers that the gateway does not know."""

    def _complete(self, request):
        complete = super()._complete(request)
        complete.finish_reason = complete.speculation.acceptance = 99
        return complete


async def test_what_a_newer_verifier_reports_costs_no_tokens() -> None:
    verifier = Newer()
    verifier.messages = [([5, 6], [R, R])]
    rejection = types_pb2.SpeculationOptions(acceptance=types_pb2.ACCEPTANCE_REJECTION)
    async with serving(verifier), gateway(verifier.address) as target:
        answer = await target.generate(token_ids=ids_of(1), speculation=rejection)
    assert answer.ids == [5, 6]
    assert answer.complete.finish_reason == 99
    assert answer.complete.speculation.acceptance == types_pb2.ACCEPTANCE_REJECTION


async def test_running_generations_finish_while_the_server_stops() -> None:
    verifier = ScriptedWorker()
    verifier.messages, verifier.hold = [([5], [R])], asyncio.Event()
    async with serving(verifier), gateway(verifier.address) as target:
        running = asyncio.create_task(target.generate(token_ids=ids_of(1)))
        await until(lambda: len(verifier.requests) == 1)
        stopping = asyncio.create_task(target.server.stop(10))
        await asyncio.sleep(0.05)
        verifier.hold.set()
        assert (await running).ids == [5]
        await stopping


async def test_a_drained_verifier_is_let_go() -> None:
    verifier = ScriptedWorker()
    async with serving(verifier), gateway(verifier.address) as target:
        handle = target.fleet.verifier(verifier.address)
        verifier.status.accepting, verifier.status.running = False, 1
        await until(lambda: not handle.candidate.available)
        assert handle.present
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        verifier.status.running = 0
        await until(lambda: not handle.present)


@pytest.mark.parametrize("known", [False, True])
async def test_each_reason_why_a_worker_is_not_there_is_told_once(
    known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """First nobody listens at its address, then a drafter does."""
    worker, asked = ScriptedWorker(), []

    async def describe(request: object, context: object) -> worker_pb2.DescribeResponse:
        asked.append(request)
        return worker.description

    def told() -> list[tuple[str, str]]:
        lines = (each for each in caplog.records if each.levelname == "WARNING")
        return [(each.message, each.reason) for each in lines if hasattr(each, "reason")]

    monkeypatch.setattr(workers, "_LAST_RETRY_S", 0.1)
    await worker.start()
    if not known:
        await worker.stop()
    async with gateway(worker.address, ready=known):
        await worker.stop()
        await until(lambda: any("refused" in reason for _, reason in told()))
        worker.description.tier = worker_pb2.TIER_DRAFTER
        worker.Describe = describe  # type: ignore[method-assign]
        await worker.start(int(worker.address.rpartition(":")[2]))
        await until(lambda: len(asked) >= 3)
    await worker.stop()
    event = "verifier still lost" if known else "verifier not reachable yet"
    assert told().count((event, "it is no verifier")) == 1
    assert len(told()) == len(set(told()))
    assert [event for event, _ in told()].count("verifier lost") == known


def test_a_reason_is_the_same_whatever_address_it_names() -> None:
    reason = "last error: UNKNOWN: {}: connect: Connection refused ({})"
    found = ("ipv4:10.0.0.7:7071", 111), ("ipv6:%5Bfe80::ab%5D:7072", 61)
    assert len({workers._kind(reason.format(*each)) for each in found}) == 1
    assert workers._kind("Connection refused") != workers._kind("it is no verifier")
