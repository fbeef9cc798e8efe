"""A receiver of spans on this machine, which keeps them in memory."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

_STOP_S = 1.0


class OtlpSink(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans by OTLP over gRPC, as a context manager.

    Attributes:
        endpoint: Where it listens, as `tracing.endpoint` wants it; set inside.
    """

    def __init__(self) -> None:
        self.endpoint = ""
        self._resources: list[trace_pb2.ResourceSpans] = []
        self._server = grpc.server(ThreadPoolExecutor(1))

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  (gRPC names its methods)
        """Takes a batch."""
        self._resources.extend(request.resource_spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> Sequence[trace_pb2.Span]:
        """All spans so far."""
        scopes = [scope for resource in self._resources for scope in resource.scope_spans]
        return [span for scope in scopes for span in scope.spans]

    @property
    def text(self) -> str:
        """All that was received, for people."""
        return "\n".join(str(resource) for resource in self._resources)

    def __enter__(self) -> Self:
        add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
        add(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(_STOP_S).wait()
