"""One trace from the client's span through gateway and verifier to rounds, and no text in it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2
from paceline.v1 import inference_pb2, types_pb2

from bench.otlp_sink import OtlpSink
from common.logs import JsonFormatter
from common.model.runner import Runner
from common.telemetry.config import TracingConfig
from common.telemetry.otlp import OtlpTraces
from common.telemetry.span import Traces
from common.telemetry.traces import open_traces
from common.tokenizer import Tokenizer
from gateway.auth.config import AuthConfig
from tests.rpc.gateways import gateway, ids_of
from tests.rpc.services import ask, braked, drafting, verifying
from tests.scrapes import scrape
from tests.scripted_workers import ScriptedWorker, serving
from tests.waiting import until
from verifier.drafting import clock

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1"))
UNSAMPLED = (("traceparent", f"00-{TRACE}-{PARENT}-00"),)
PARTS = {"draft", "wire", "queue", "verify", "commit"}


@asynccontextmanager
async def tracing(sink: OtlpSink, service: str, **config: Any) -> AsyncIterator[Traces]:
    """Makes traces inside; all are in the sink after."""
    traces = open_traces(TracingConfig(endpoint=sink.endpoint, **config), service)
    assert isinstance(traces, OtlpTraces)
    try:
        yield traces
    finally:
        await asyncio.to_thread(traces._provider.force_flush)  # takes its time, on a busy machine
        await asyncio.to_thread(traces.close)


def attributes(span: trace_pb2.Span) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "")
        for each in span.attributes
    }


def named(sink: OtlpSink, name: str) -> list[trace_pb2.Span]:
    return [span for span in sink.spans if span.name == name]


def one(spans: Sequence[trace_pb2.Span]) -> trace_pb2.Span:
    (found,) = spans
    return found


async def test_a_request_is_one_trace_down_to_the_parts_of_its_rounds(
    target: Runner, twin: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_LEAST_PATIENCE_S", 10.0)  # drafters are waited for
    request = inference_pb2.GenerateRequest(
        token_ids=ids_of(*range(5, 45)),
        max_tokens=60,
        ignore_eos=True,
        speculation=types_pb2.SpeculationOptions(method="draft", draft_tokens=5),
    )
    with OtlpSink() as sink:
        async with (
            tracing(sink, "gateway", sample_ratio=0.0) as at_gateway,
            tracing(sink, "verifier", sample_ratio=0.0) as at_verifier,
            drafting(twin) as drafter,
            verifying(target, traces=at_verifier) as verifier,
            gateway(verifier.address, drafters=(drafter.address,), traces=at_gateway) as front,
            asyncio.timeout(60),
        ):
            drafted = False
            while not drafted:  # the first request only causes the connection to the drafter
                call = front.stub.Generate(request, metadata=UNSAMPLED)
                messages = [message async for message in call]
                drafted = messages[-1].complete.speculation.accepted_tokens > 0
            call = front.stub.Generate(request, metadata=SAMPLED)
            messages = [message async for message in call]
        spans = sink.spans
        about = sink.text
    complete = messages[-1].complete
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert "paceline-gateway" in about
    assert "paceline-verifier" in about

    outer = one(named(sink, "text_completion demo"))
    assert outer.parent_span_id.hex() == PARENT
    assert outer.trace_state == "vendor=1"
    said = attributes(outer)
    assert said["gen_ai.operation.name"] == "text_completion"
    assert said["gen_ai.provider.name"] == "paceline"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == "demo"
    assert said["gen_ai.usage.input_tokens"] == 40
    assert said["gen_ai.usage.output_tokens"] == 60
    assert said["paceline.accepted_tokens"] == complete.speculation.accepted_tokens
    assert "error.type" not in said

    inner = one(named(sink, "paceline.v1.Verifier/Generate"))
    assert inner.parent_span_id == outer.span_id
    assert attributes(inner)["paceline.method"] == "draft"
    assert attributes(inner)["paceline.rounds"] == complete.speculation.rounds

    rounds = named(sink, "round")
    assert len(rounds) == complete.speculation.rounds
    assert {each.parent_span_id for each in rounds} == {inner.span_id}
    accepted = [attributes(each)["paceline.accepted_tokens"] for each in rounds]
    assert sum(accepted) == complete.speculation.accepted_tokens
    for each in rounds:
        parts = [span for span in spans if span.parent_span_id == each.span_id]
        parts.sort(key=lambda span: span.start_time_unix_nano)
        assert {"verify", "commit"} <= {part.name for part in parts} <= PARTS
        assert parts[0].start_time_unix_nano == each.start_time_unix_nano
        assert parts[-1].end_time_unix_nano == each.end_time_unix_nano
        for before, after in pairwise(parts):
            assert before.end_time_unix_nano == after.start_time_unix_nano
        assert inner.start_time_unix_nano <= each.start_time_unix_nano


async def test_who_has_enough_and_hangs_up_leaves_a_span_of_what_there_was(target: Runner) -> None:
    """A gateway does, where it finds a stop string."""
    with OtlpSink() as sink:
        async with (
            tracing(sink, "verifier", sample_ratio=1.0) as traces,
            verifying(target, traces=traces) as verifier,
        ):
            with braked(target) as brake:
                brake.let(3)
                call = verifier.stub.Generate(ask([5, 6, 7], 60))
                tokens = 0
                while tokens < 3:
                    tokens += len((await call.read()).tokens.ids)
                call.cancel()
                await until(lambda: not verifier.engine.live)
            await verifier.empty()
        said = attributes(one(named(sink, "paceline.v1.Verifier/Generate")))
    assert said["paceline.method"] == "plain"
    assert said["paceline.rounds"] == said["gen_ai.usage.output_tokens"] == 3
    assert said["paceline.accepted_tokens"] == 0
    assert said["gen_ai.usage.input_tokens"] == 3
    assert "gen_ai.response.finish_reasons" not in said


async def test_without_a_parent_the_ratio_decides_and_without_a_sample_there_is_nothing() -> None:
    verifier = ScriptedWorker()
    verifier.messages = [([5], [types_pb2.TOKEN_SOURCE_RECOVERED])]
    with OtlpSink() as sink:
        for ratio, spans in ((0.0, 0), (1.0, 1)):
            async with (
                tracing(sink, "gateway", sample_ratio=ratio) as traces,
                serving(verifier),
                gateway(verifier.address, traces=traces) as front,
            ):
                await front.generate(token_ids=ids_of(5), max_tokens=1)
            assert len(sink.spans) == spans


async def test_an_error_ends_a_span_with_its_code_and_without_its_words() -> None:
    verifier = ScriptedWorker()
    verifier.error = RuntimeError("words")
    with OtlpSink() as sink:
        async with (
            tracing(sink, "gateway", sample_ratio=1.0) as traces,
            serving(verifier),
            gateway(verifier.address, traces=traces) as front,
        ):
            for request in ({"token_ids": ids_of(5)}, {"text": "words"}):
                with pytest.raises(grpc.aio.AioRpcError):
                    await front.generate(max_tokens=1, **request)
        broken, refused = sink.spans
        assert "words" not in sink.text
    assert attributes(broken)["error.type"] == "INTERNAL"
    assert broken.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    assert attributes(refused)["error.type"] == "FAILED_PRECONDITION"
    assert refused.status.code == trace_pb2.Status.STATUS_CODE_UNSET, "the caller's fault"


@pytest.mark.parametrize(
    ("broken", "event"),
    [("engine.submit", "handler failed"), ("runner.forward", "a sequence failed")],
)
async def test_lines_of_what_fails_name_the_request_and_its_trace(
    broken: str, event: str, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    with OtlpSink() as sink, logged() as lines:
        async with (
            tracing(sink, "verifier", sample_ratio=0.0) as traces,
            verifying(target, traces=traces) as verifier,
        ):
            owner, name = broken.split(".")
            monkeypatch.setattr(getattr(verifier, owner), name, fail)
            call = verifier.stub.Generate(ask([5, 6, 7], 4), metadata=SAMPLED)
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
        span = one(sink.spans)
    told = (json.loads(line) for line in lines.getvalue().splitlines())
    line = next(each for each in told if each["event"] == event)
    assert (line["trace_id"], line["span_id"]) == (TRACE, span.span_id.hex())
    assert line["request"] == attributes(span)["paceline.request_id"] != ""


async def test_no_text_in_spans_metrics_and_logs_which_name_the_trace(
    demo_target: Path,
) -> None:
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    verifier = ScriptedWorker(tokenizer_fingerprint=tokenizer.fingerprint)
    answer = tokenizer.encode("an unmistakable reply")
    verifier.messages = [([id_], [types_pb2.TOKEN_SOURCE_RECOVERED]) for id_ in answer]
    with OtlpSink() as sink, logged() as lines:
        async with (
            tracing(sink, "gateway", sample_ratio=0.0) as traces,
            serving(verifier),
            gateway(verifier.address, tokenizer=tokenizer, traces=traces) as front,
        ):
            request = inference_pb2.GenerateRequest(
                text="a remarkable question", stop=["halt here"], session_id="s"
            )
            call = front.stub.Generate(request, metadata=SAMPLED)
            text = "".join([message.chunk.text async for message in call])
            page = await scrape(front.metrics)
        assert text == "an unmistakable reply"
        everything = sink.text + page.text + lines.getvalue()
        span = one(sink.spans)
    for words in ("remarkable", "question", "unmistakable", "reply", "halt"):
        assert words not in everything
    placed = next(json.loads(line) for line in lines.getvalue().splitlines() if "placed" in line)
    assert (placed["trace_id"], placed["span_id"]) == (TRACE, span.span_id.hex())


async def test_a_stranger_has_nothing_recorded(tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text("tenants: {}")
    auth = AuthConfig(tokens=tmp_path / "tokens.yaml")
    with OtlpSink() as sink:
        async with (
            tracing(sink, "gateway") as traces,
            gateway(auth=auth, traces=traces) as front,
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="bearer token"):
                await front.stub.Generate(
                    inference_pb2.GenerateRequest(text="x"), metadata=SAMPLED
                ).read()
            page = await scrape(front.metrics)
        assert not sink.spans
    assert page.value("paceline_requests_total", method="Generate", code="UNAUTHENTICATED") == 1


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Collects what a gateway logs, from the least severe line on."""
    lines, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter("gateway"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
