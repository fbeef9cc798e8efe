"""Spans made by OpenTelemetry and sent by OTLP over gRPC; imported only where tracing is on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from common.telemetry.config import TracingConfig
from common.telemetry.span import Metadata, Span, SpanIds, Traces, Value, coded, entered

_CLOSE_S = 2.0
"""Time that the last spans get to be sent."""

_OURS = frozenset({"DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE"})
"""Codes that speak against a server; with the others the caller was at fault, or went away."""


class OtlpTraces(Traces):
    """Makes spans, and sends them from a thread of its own.

    A receiver that is away costs spans and log lines, nothing else: what it does not take is
    dropped.

    Args:
        config: Where they go, and how many; the endpoint is set.
        service: The service's name.
    """

    def __init__(self, config: TracingConfig, service: str) -> None:
        assert config.endpoint is not None
        self._exporter = OTLPSpanExporter(
            endpoint=config.endpoint, insecure=config.endpoint.startswith("http://")
        )
        about = {
            "service.name": f"paceline-{service}",
            "service.version": version("paceline-server"),
        }
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
            resource=Resource.create(about).merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("paceline")
        self._context = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, name: str, received: Metadata | None) -> Iterator[Span]:
        """See `Traces.span`."""
        carried = {key: value for key, value in received or () if isinstance(value, str)}
        parent = self._context.extract(carried, context=Context())
        made = self._tracer.start_span(name, context=parent, kind=SpanKind.SERVER)
        # One offset for a request, so that its spans meet where they should.
        span = _OtlpSpan(self._tracer, made, time.time_ns() - time.monotonic_ns())
        with coded(span.end), entered(_ids(made)):
            yield span

    def close(self) -> None:
        """See `Traces.close`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():  # the receiver is away: no more attempts
            self._exporter.shutdown()
            closing.join(_CLOSE_S)


class _OtlpSpan(Span):
    def __init__(self, tracer: trace.Tracer, span: trace.Span, epoch_ns: int) -> None:
        self._tracer, self._span, self._epoch_ns = tracer, span, epoch_ns

    @property
    def recording(self) -> bool:  # type: ignore[override]
        return self._span.is_recording()

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def set(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(attributes)

    def child(
        self, name: str, began_s: float, ended_s: float, attributes: Mapping[str, Value]
    ) -> Span:
        context = trace.set_span_in_context(self._span, Context())
        child = self._tracer.start_span(
            name, context=context, attributes=attributes, start_time=self._at(began_s)
        )
        child.end(self._at(ended_s))
        return _OtlpSpan(self._tracer, child, self._epoch_ns)

    def end(self, code: str) -> None:
        # No message: it may quote the request. Nothing of who left: a stop sequence has the gateway
        # leave a verifier, too.
        if code not in ("OK", "CANCELLED"):
            self._span.set_attribute("error.type", code)
        if code in _OURS:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def _at(self, monotonic_s: float) -> int:
        return self._epoch_ns + int(monotonic_s * 1e9)


def _ids(span: trace.Span) -> SpanIds:
    context = span.get_span_context()
    return SpanIds(
        trace_id=trace.format_trace_id(context.trace_id),
        span_id=trace.format_span_id(context.span_id),
        sampled=context.trace_flags.sampled,
        state=context.trace_state.to_header(),
    )
