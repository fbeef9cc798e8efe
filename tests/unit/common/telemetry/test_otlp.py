"""Spans as a receiver gets them, and a receiver that is away."""

from __future__ import annotations

import asyncio

import pytest

from bench.otlp_sink import OtlpSink
from common.errors import Unavailable
from common.telemetry import otlp, span
from common.telemetry.config import TracingConfig
from common.telemetry.otlp import OtlpTraces

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def caller(flags: str) -> tuple[tuple[str, str | bytes], ...]:
    return (("traceparent", f"00-{TRACE}-{PARENT}-{flags}"), ("token-bin", b"\xff"))


def traces_to(endpoint: str, **given: float) -> OtlpTraces:
    return OtlpTraces(TracingConfig(endpoint=endpoint, **given), "verifier")


def sent(traces: OtlpTraces) -> None:
    """Waits until all is with the receiver; `close` would not wait for a machine that is busy."""
    traces._provider.force_flush()
    traces.close()


def test_a_span_and_what_is_below_it_belong_to_the_caller() -> None:
    with OtlpSink() as sink:
        traces = traces_to(sink.endpoint, sample_ratio=0.0)
        with traces.span("first", caller("01")) as made:
            assert made.recording
            (carried,) = span.metadata()
            made.rename("better")
            made.set({"number": 3, "names": ["a", "b"]})
            made.child("round", 10.0, 12.0, {}).child("verify", 10.5, 11.0, {"rows": 4})
        with traces.span("unsampled", caller("00")) as made:
            assert not made.recording
            assert span.metadata() == (("traceparent", span.metadata()[0][1]),)
            assert span.metadata()[0][1].startswith(f"00-{TRACE}-")
            assert span.metadata()[0][1].endswith("-00")
        sent(traces)
        found = {each.name: each for each in sink.spans}
    assert set(found) == {"better", "round", "verify"}
    outer, round_, verify = found["better"], found["round"], found["verify"]
    assert {each.trace_id.hex() for each in found.values()} == {TRACE}
    assert outer.parent_span_id.hex() == PARENT
    assert carried == ("traceparent", f"00-{TRACE}-{outer.span_id.hex()}-01")
    assert round_.parent_span_id == outer.span_id
    assert verify.parent_span_id == round_.span_id
    seconds = (verify.start_time_unix_nano - round_.start_time_unix_nano) / 1e9
    assert seconds == pytest.approx(0.5)
    assert (round_.end_time_unix_nano - round_.start_time_unix_nano) / 1e9 == pytest.approx(2.0)


def test_who_calls_from_elsewhere_without_a_trace_begins_one() -> None:
    with OtlpSink() as sink:
        traces = traces_to(sink.endpoint, sample_ratio=1.0)
        for received in (None, (), (("traceparent", "nonsense"),)):
            with traces.span("own", received):
                pass
        sent(traces)
        spans = sink.spans
    assert len({each.trace_id for each in spans}) == 3
    assert {each.parent_span_id for each in spans} == {b""}


@pytest.mark.parametrize(
    ("error", "code", "fault"),
    [
        (Unavailable("words"), "UNAVAILABLE", True),
        (KeyError("words"), "INTERNAL", True),
        (asyncio.CancelledError(), "CANCELLED", False),
    ],
)
def test_an_error_is_a_code_and_no_words(error: BaseException, code: str, fault: bool) -> None:
    with OtlpSink() as sink:
        traces = traces_to(sink.endpoint, sample_ratio=1.0)
        with pytest.raises(type(error)), traces.span("own", None):
            raise error
        sent(traces)
        (made,) = sink.spans
        assert "words" not in sink.text
    said = {each.key: each.value.string_value for each in made.attributes}
    assert said == ({} if code == "CANCELLED" else {"error.type": code})
    assert (made.status.code == made.status.STATUS_CODE_ERROR) is fault


def test_the_environment_has_the_last_word_on_what_the_process_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def about() -> dict[str, object]:
        traces = traces_to("http://127.0.0.1:1")
        traces.close()
        return dict(traces._provider.resource.attributes)

    assert about()["service.name"] == "paceline-verifier"
    said = "service.name=ours,deployment.environment.name=test"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", said)
    assert about()["service.name"] == "ours"
    assert about()["deployment.environment.name"] == "test"
    assert about()["service.version"]
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert about()["service.name"] == "mine"


def test_a_receiver_that_is_away_costs_spans_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_CLOSE_S", 0.2)
    traces = traces_to("http://127.0.0.1:1", sample_ratio=1.0)
    with traces.span("lost", None) as made:
        assert made.recording
    traces.close()
