"""A gateway is lost and the SDK goes on with another: same ids, same text, counts that add up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import paceline
import pytest
from paceline import errors
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import types_pb2

from common.chat_template import ChatTemplate
from common.tokenizer import Tokenizer
from gateway import wire
from gateway.request import Resume
from gateway.transcript import Transcript
from tests.rpc.gateways import Gateway, gateway, ids_of
from tests.rpc.texts import KeyedVerifier, text
from tests.scripted_workers import NUMERICS, ScriptedWorker, serving
from tests.waiting import until

PROMPT = [5, 6, 7, 8]
SEED, TOKENS = 11, 60
R = types_pb2.TOKEN_SOURCE_RECOVERED


@asynccontextmanager
async def two_gateways(
    *verifiers: ScriptedWorker, tokenizer: Tokenizer | None = None
) -> AsyncIterator[tuple[Gateway, Gateway, paceline.AsyncClient]]:
    """Two gateways of one fleet, and a client that knows both and starts with the first."""
    addresses = [each.address for each in verifiers]
    async with (
        gateway(*addresses, tokenizer=tokenizer) as first,
        gateway(*addresses, tokenizer=tokenizer) as second,
        paceline.AsyncClient(
            f"ipv4:127.0.0.1:{first.server.port},127.0.0.1:{second.server.port}"
        ) as client,
    ):
        yield first, second, client


async def lose_after(tokens: int, stream: Any, first: Gateway, into: list[paceline.Chunk]) -> None:
    """Reads so many tokens, then takes the gateway away and reads the rest."""
    async for chunk in stream:
        into.append(chunk)
        if tokens is not None and sum(len(each.token_ids) for each in into) >= tokens:
            tokens = 10**9
            await first.server.stop()


@pytest.mark.parametrize("tokens", [1, 20, 40])
async def test_the_text_goes_on_through_another_gateway(tokens: int) -> None:
    verifier = KeyedVerifier()
    verifier.pace_s = 0.005
    options = {"token_ids": PROMPT, "max_tokens": TOKENS, "temperature": 1.0, "seed": SEED}
    async with serving(verifier), two_gateways(verifier) as (first, _, client):
        undisturbed = await client.generate(**options).result()
        generation = client.generate(**options)
        chunks: list[paceline.Chunk] = []
        await lose_after(tokens, generation, first, chunks)
        result = await generation.result()
    assert list(result.token_ids) == text(SEED, PROMPT, TOKENS)
    assert [id_ for chunk in chunks for id_ in chunk.token_ids] == list(result.token_ids)
    assert result.usage == undisturbed.usage
    assert result.speculation.accepted_tokens == sum(result.speculation.accepted_per_position)
    sources = [source for chunk in chunks for source in chunk.sources]
    assert sources.count("accepted") == result.speculation.accepted_tokens
    assert result.speculation.drafted_tokens == 2 * result.speculation.rounds
    resumed = verifier.requests[-1]
    assert resumed.request_id == result.request_id == verifier.requests[-2].request_id
    assert resumed.sampling.seed == SEED
    assert len(resumed.prompt_ids) > len(PROMPT)


async def test_the_text_waits_for_a_gateway_that_is_full() -> None:
    verifier = KeyedVerifier()
    verifier.pace_s = 0.005
    async with serving(verifier), two_gateways(verifier) as (first, second, client):
        with ExitStack() as others:
            for _ in range(8):
                others.enter_context(second.admission.slot())
            generation = client.generate(token_ids=PROMPT, max_tokens=TOKENS, seed=SEED)
            losing = asyncio.ensure_future(lose_after(20, generation, first, []))
            await until(lambda: second.admission.refused.total() > 0)
        await losing
        result = await generation.result()
    assert list(result.token_ids) == text(SEED, PROMPT, TOKENS)


async def test_a_seed_the_gateway_drew_is_kept() -> None:
    verifier = KeyedVerifier()
    verifier.pace_s = 0.005
    async with serving(verifier), two_gateways(verifier) as (first, _, client):
        generation = client.generate(token_ids=PROMPT, max_tokens=TOKENS, temperature=1.0)
        chunks: list[paceline.Chunk] = []
        await lose_after(10, generation, first, chunks)
        result = await generation.result()
    assert list(result.token_ids) == text(result.seed, PROMPT, TOKENS)
    assert len(verifier.requests) == 2


async def test_a_gateway_that_is_lost_before_it_answers() -> None:
    verifier = KeyedVerifier()
    verifier.fails_after, verifier.failure = 0, None
    async with serving(verifier), two_gateways(verifier) as (first, _, client):
        generation = client.generate(token_ids=PROMPT, max_tokens=TOKENS, seed=SEED)
        await until(lambda: len(verifier.requests) == 1)
        verifier.fails_after = None
        await first.server.stop()
        result = await generation.result()
    assert list(result.token_ids) == text(SEED, PROMPT, TOKENS)


async def test_opting_out() -> None:
    verifier = KeyedVerifier()
    verifier.pace_s = 0.005
    async with serving(verifier), two_gateways(verifier) as (first, _, client):
        generation = client.generate(token_ids=PROMPT, max_tokens=TOKENS, resume=False)
        with pytest.raises((errors.UnavailableError, errors.CancelledError)):
            await lose_after(10, generation, first, [])
    assert len(verifier.requests) == 1


async def test_only_the_same_numerics_go_on() -> None:
    one, other = KeyedVerifier(numerics_fingerprint="a"), KeyedVerifier(numerics_fingerprint="b")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(one, other))
        target = await stack.enter_async_context(gateway(one.address, other.address))
        for numerics, worker in (("a", one), ("b", other)):
            resume = pb.Resume(token_ids=[9], sources=[R], rounds=1, numerics=numerics)
            for _ in range(3):
                sampling = types_pb2.SamplingParams(seed=SEED)
                answer = await target.generate(
                    token_ids=ids_of(*PROMPT), max_tokens=9, sampling=sampling, resume=resume
                )
                assert answer.started.numerics == numerics
                assert answer.started.resumed_tokens == 1
            assert len(worker.requests) == 3
        resume = pb.Resume(numerics="c")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1), sampling=sampling, resume=resume)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_resumes_at_once_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, replaying = [ScriptedWorker() for _ in range(4)], asyncio.Barrier(8)

    async def replay(transcript: Transcript, resume: Resume) -> None:
        await replaying.wait()

    monkeypatch.setattr(Transcript, "replay", replay)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(*workers))
        target = await stack.enter_async_context(gateway(*(each.address for each in workers)))
        fields = {"token_ids": ids_of(*PROMPT), "sampling": types_pb2.SamplingParams(seed=SEED)}
        resume = pb.Resume(token_ids=[9], sources=[R], rounds=1, numerics=NUMERICS)
        await asyncio.gather(*(target.generate(**fields, resume=resume) for _ in range(8)))
    assert [len(each.requests) for each in workers] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("numerics", "prompt"), [("old", {"token_ids": ids_of(*PROMPT)}), ("new", {"text": "go"})]
)
async def test_a_text_goes_on_in_the_tokens_it_began_in(
    numerics: str, prompt: dict[str, Any], demo_target: Path
) -> None:
    """Half-way through a rollout, whichever tokenizer what begins now would have."""
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    old = KeyedVerifier(numerics_fingerprint="old")
    new = KeyedVerifier(numerics_fingerprint="new", tokenizer_fingerprint=tokenizer.fingerprint)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(old, new))
        target = await stack.enter_async_context(
            gateway(old.address, new.address, tokenizer=tokenizer)
        )
        resume = pb.Resume(token_ids=[8], sources=[R], rounds=1, numerics=numerics)
        sampling = types_pb2.SamplingParams(seed=SEED)
        answer = await target.generate(**prompt, max_tokens=2, sampling=sampling, resume=resume)
    assert answer.started.numerics == numerics
    assert [len(old.requests), len(new.requests)] == [numerics == "old", numerics == "new"]


def templated(directory: Path, source: str) -> Tokenizer:
    """The tokenizer of a directory with another chat template."""
    loaded = Tokenizer.load(directory)
    assert loaded is not None
    template = ChatTemplate(source, {})
    return Tokenizer(loaded._backend, fingerprint=loaded.fingerprint, template=template)


CHAT = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content="go")])


async def test_a_prompt_has_the_time_that_it_began_at(
    demo_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = templated(demo_target, "{{ strftime_now('%H:%M:%S') }} {{ messages[0].content }}")
    verifier = KeyedVerifier(tokenizer_fingerprint=tokenizer.fingerprint)
    verifier.pace_s = 0.005
    clock = SimpleNamespace(time=iter(range(1000, 2000)).__next__)
    monkeypatch.setattr(wire, "time", clock)
    messages = [{"role": "user", "content": "go"}]
    async with (
        serving(verifier),
        two_gateways(verifier, tokenizer=tokenizer) as (first, second, client),
    ):
        generation = client.generate(messages=messages, max_tokens=TOKENS, seed=SEED)
        await lose_after(20, generation, first, [])
        result = await generation.result()
        anew = await second.generate(chat=CHAT, max_tokens=1)
    begun, resumed, other = (list(each.prompt_ids) for each in verifier.requests)
    assert list(result.token_ids) == text(SEED, begun, TOKENS)
    assert resumed[: len(begun)] == begun == tokenizer.encode("00:16:40 go")
    assert other == tokenizer.encode("00:16:41 go")
    assert anew.started.prompt_time_s == 1001


async def test_no_text_goes_on_after_another_prompt(demo_target: Path) -> None:
    """As half-way through a rollout that changes the chat template, or the tokenizer's settings."""
    old, new = (templated(demo_target, source + "{{ messages[0].content }}") for source in "ab")
    verifier = KeyedVerifier(tokenizer_fingerprint=old.fingerprint)
    sampling = types_pb2.SamplingParams(seed=SEED)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(verifier))
        doors = (gateway(verifier.address, tokenizer=each) for each in (old, new))
        first, second = [await stack.enter_async_context(each) for each in doors]

        async def resumed(ids: list[int], digest: bytes, **prompt: Any) -> list[int]:
            begun = {"token_ids": ids, "sources": [R] * len(ids), "rounds": len(ids)}
            resume = pb.Resume(**begun, numerics=NUMERICS, prompt_digest=digest)
            answer = await second.generate(**prompt, max_tokens=9, sampling=sampling, resume=resume)
            return [*ids, *answer.ids]

        for prompt, other in (({"chat": CHAT}, {"chat": CHAT}), ({"text": "a"}, {"text": "b"})):
            begun = await first.generate(**prompt, max_tokens=9, sampling=sampling)
            digest, served = begun.started.prompt_digest, len(verifier.requests)
            with pytest.raises(grpc.aio.AioRpcError, match="begin it anew") as caught:
                await resumed(begun.ids[:4], digest, **other)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert len(verifier.requests) == served
            assert await resumed([], digest, **other), "of which nothing is there yet"
        assert await resumed(begun.ids[:4], digest, **prompt) == begun.ids
        assert await resumed(begun.ids[:4], b"", **prompt) == begun.ids, "as older clients ask"


async def test_a_method_whose_drafters_are_gone_holds_nothing_up() -> None:
    verifier = KeyedVerifier()
    draft = types_pb2.SpeculationOptions(method="draft")
    begun = text(SEED, PROMPT, 1)
    resume = pb.Resume(token_ids=begun, sources=[R], rounds=1, numerics=NUMERICS)
    async with serving(verifier), gateway(verifier.address) as target:
        answer = await target.generate(
            token_ids=ids_of(*PROMPT),
            max_tokens=9,
            sampling=types_pb2.SamplingParams(seed=SEED),
            speculation=draft,
            resume=resume,
        )
    assert answer.ids == text(SEED, PROMPT, 9)[1:]
    assert verifier.requests[0].speculation.method == "plain"


@pytest.mark.parametrize("stop", [["STOP"], []])
async def test_wherever_it_is_cut_the_text_is_whole(demo_target: Path, stop: list[str]) -> None:
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    whole = "Grüße 😀 from ST here\nSTOP never 😀"
    ids = tokenizer.encode(whole)[:-1]  # ends inside a character
    verifier = ScriptedWorker(tokenizer_fingerprint=tokenizer.fingerprint)
    async with serving(verifier), gateway(verifier.address, tokenizer=tokenizer) as target:
        fields = {
            "text": "go",
            "stop": stop,
            "max_tokens": len(ids),
            "sampling": types_pb2.SamplingParams(seed=1),
        }
        verifier.messages = [([id_], [R]) for id_ in ids]
        undisturbed = await target.generate(**fields)
        for cut in range(len(undisturbed.ids) + 1):
            verifier.messages = [([id_], [R]) for id_ in ids[cut:]]
            begun = {"token_ids": ids[:cut], "sources": [R] * cut, "rounds": cut}
            resume = pb.Resume(**begun, numerics=NUMERICS)
            rest = await target.generate(**fields, resume=resume)
            before = "".join(
                chunk.text for chunk in undisturbed.chunks[:cut] if len(chunk.token_ids)
            )
            assert before + rest.text == undisturbed.text
            assert rest.complete.usage.prompt_tokens == undisturbed.complete.usage.prompt_tokens
            assert rest.complete.finish_reason == undisturbed.complete.finish_reason
            assert rest.complete.stop == undisturbed.complete.stop
            assert rest.complete.usage.completion_tokens == len(undisturbed.ids)


@pytest.mark.parametrize(
    ("begun", "fields", "field"),
    [
        ({"token_ids": [1], "sources": []}, {}, "resume.sources"),
        ({"token_ids": [4096], "sources": [R]}, {}, "resume.token_ids"),
        ({"token_ids": [5], "sources": [R], "rounds": 2}, {}, "resume.rounds"),
        ({"rounds": 2**32 - 1}, {}, "resume.rounds"),
        (
            {"token_ids": [5], "sources": [R], "rounds": 1, "drafted_tokens": 2**32 - 1},
            {},
            "resume.drafted_tokens",
        ),
        ({"token_ids": [1] * 9, "sources": [R] * 9}, {"max_tokens": 8}, "resume.token_ids"),
        ({"token_ids": [2, 3], "sources": [R] * 2}, {}, "resume.token_ids"),
        ({"numerics": ""}, {}, "resume.numerics"),
        ({}, {"sampling": types_pb2.SamplingParams()}, "sampling.seed"),
    ],
)
async def test_what_cannot_be_resumed(begun: dict, fields: dict, field: str) -> None:
    verifier = ScriptedWorker()
    fields = {"sampling": types_pb2.SamplingParams(seed=1), **fields}
    resume = pb.Resume(**({"numerics": NUMERICS} | begun))
    async with serving(verifier), gateway(verifier.address) as target:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.generate(token_ids=ids_of(1), resume=resume, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(field + ":")
    assert verifier.requests == []
