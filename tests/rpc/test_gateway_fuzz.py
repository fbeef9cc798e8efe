"""Whatever a client sends, the gateway answers with a code that fits, and nothing stays behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message as protobuf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import types_pb2

from common.tokenizer import Tokenizer
from tests.rpc.gateways import Gateway, gateway
from tests.rpc.texts import KeyedVerifier
from tests.scripted_workers import NUMERICS, serving

SERVICE = "/paceline.v1.Inference/"
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
}
FUZZ = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

UINT32, UINT64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
SMALL = st.one_of(st.integers(0, 300), UINT32)
DOUBLE = st.one_of(st.sampled_from([0.0, 0.5, 1.0, -1.0]), st.floats(width=64))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ENUM = st.integers(0, 5)
IDS = st.lists(st.one_of(st.integers(0, 199), UINT32), max_size=12)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields, each with some value."""
    return st.fixed_dictionaries({}, optional=fields)


CHAT = st.builds(
    pb.ChatMessages,
    messages=st.lists(st.builds(pb.ChatMessage, role=TEXT, content=TEXT), max_size=3),
)
INPUTS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"text": TEXT}),
    st.fixed_dictionaries({"token_ids": st.builds(pb.TokenIds, ids=IDS)}),
    st.fixed_dictionaries({"chat": CHAT}),
)
SAMPLING = maybe(
    temperature=DOUBLE,
    top_k=SMALL,
    top_p=DOUBLE,
    min_p=DOUBLE,
    repetition_penalty=DOUBLE,
    logit_bias=st.dictionaries(UINT32, DOUBLE, max_size=3),
    seed=UINT64,
).map(lambda fields: types_pb2.SamplingParams(**fields))
METHOD = st.one_of(st.sampled_from(["", "auto", "plain", "draft", "draft+ngram"]), TEXT)
SIZES = st.builds(types_pb2.LookaheadOptions, window=SMALL, ngram=SMALL, guesses=SMALL)
SPECULATION = maybe(method=METHOD, draft_tokens=SMALL, lookahead=SIZES, acceptance=ENUM).map(
    lambda fields: types_pb2.SpeculationOptions(**fields)
)
RESUME = maybe(
    token_ids=IDS,
    sources=st.lists(ENUM, max_size=12),
    rounds=UINT32,
    drafted_tokens=UINT32,
    numerics=st.one_of(st.just(NUMERICS), TEXT),
    prompt_digest=st.binary(max_size=40),
    prompt_time_s=UINT64,
).map(lambda fields: pb.Resume(**fields))
REST = maybe(
    request_id=TEXT,
    model=st.one_of(st.just("demo"), TEXT),
    max_tokens=SMALL,
    sampling=SAMPLING,
    speculation=SPECULATION,
    stop=st.lists(TEXT, max_size=3),
    stop_token_ids=IDS,
    ignore_eos=st.booleans(),
    session_id=TEXT,
    resume=RESUME,
)
REQUESTS = st.builds(lambda form, rest: pb.GenerateRequest(**form, **rest), INPUTS, REST)
TOKENIZE = st.builds(
    lambda form, model: pb.TokenizeRequest(model=model, **form),
    INPUTS.filter(lambda form: "token_ids" not in form),
    TEXT,
)
DETOKENIZE = st.builds(pb.DetokenizeRequest, model=TEXT, token_ids=IDS)


class Running:
    """A gateway on a loop of its own, called from the test's thread."""

    def __init__(self, target: Gateway) -> None:
        self._target = target
        self._channel = grpc.insecure_channel(f"127.0.0.1:{target.server.port}")

    def stream(self, method: str, request: bytes) -> tuple[grpc.StatusCode, list[bytes]]:
        """Sends bytes to a method; its code and what came."""
        call = self._channel.unary_stream(SERVICE + method)(request, timeout=20)
        answers = []
        try:
            answers.extend(call)
        except grpc.RpcError:
            assert call.details() != "internal error", "the gateway has a bug"
        return call.code(), answers

    @property
    def busy(self) -> int:
        """Requests inside."""
        return self._target.admission.running

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="module")
def running(demo_target: Path) -> Iterator[Running]:
    """One gateway for all examples, in front of a verifier that writes nonsense quickly."""
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    verifier = KeyedVerifier(tokenizer_fingerprint=tokenizer.fingerprint)
    started, over = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serving(verifier))
            door = gateway(verifier.address, tokenizer=tokenizer)
            target = await stack.enter_async_context(door)
            found.extend((target, asyncio.get_running_loop()))
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(20)
    target, loop = found
    client = Running(target)
    yield client
    client.close()
    loop.call_soon_threadsafe(over.set)
    thread.join()


def check_stream(request: pb.GenerateRequest, answers: list[bytes]) -> None:
    """A generation that was not refused is whole, and its parts agree."""
    events = [pb.GenerateResponse.FromString(answer) for answer in answers]
    assert events[0].HasField("started")
    assert events[-1].HasField("complete")
    chunks = [event.chunk for event in events if event.HasField("chunk")]
    received = sum(len(chunk.token_ids) for chunk in chunks)
    before = len(request.resume.token_ids)
    assert events[-1].complete.usage.completion_tokens == before + received
    for chunk in chunks:
        assert len(chunk.sources) == len(chunk.token_ids) == len(chunk.text_lengths)
        assert sum(chunk.text_lengths) == len(chunk.text) or not chunk.token_ids


@FUZZ
@given(request=REQUESTS)
def test_generate(running: Running, request: pb.GenerateRequest) -> None:
    code, answers = running.stream("Generate", request.SerializeToString())
    if code is grpc.StatusCode.OK:
        check_stream(request, answers)
    else:
        unplaced = request.HasField("resume") and code is grpc.StatusCode.UNAVAILABLE
        assert code in REFUSALS or unplaced
    assert running.busy == 0


@FUZZ
@given(
    call=st.one_of(
        st.tuples(st.just("Tokenize"), TOKENIZE), st.tuples(st.just("Detokenize"), DETOKENIZE)
    )
)
def test_the_other_calls(running: Running, call: tuple[str, protobuf.Message]) -> None:
    method, request = call
    code, _ = running.stream(method, request.SerializeToString())
    assert code in {grpc.StatusCode.OK, *REFUSALS}
    assert running.busy == 0


@FUZZ
@given(
    method=st.sampled_from(["Generate", "ListModels", "Tokenize", "Detokenize"]),
    garbage=st.binary(max_size=200),
)
def test_garbage(running: Running, method: str, garbage: bytes) -> None:
    code, _ = running.stream(method, garbage)
    assert code in {grpc.StatusCode.OK, *REFUSALS}
    assert running.busy == 0
