"""`python -m gateway` with its metrics scraped and its spans taken."""

from __future__ import annotations

import signal
import socket

import pytest
from grpc_health.v1 import health_pb2_grpc
from paceline.v1 import inference_pb2, inference_pb2_grpc, types_pb2

from bench.otlp_sink import OtlpSink
from common.rpc.channel import open_channel
from tests.rpc.gateways import ids_of
from tests.rpc.test_gateway_process import launch, running, until_serving
from tests.scrapes import scrape_port
from tests.scripted_workers import ScriptedWorker, serving
from tests.waiting import until


async def test_a_process_tells_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # ms from a span's end to its way
    verifier = ScriptedWorker()
    verifier.messages = [([5], [types_pb2.TOKEN_SOURCE_RECOVERED])]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with OtlpSink() as sink:
        flags = ["--metrics-port", str(port)]
        flags += ["--tracing.endpoint", sink.endpoint, "--tracing.sample-ratio", "1"]
        async with serving(verifier):
            flags += ["--verifier", verifier.address]
            async with (
                running(*flags) as (process, address),
                open_channel(f"127.0.0.1:{address}") as channel,
            ):
                await until_serving(health_pb2_grpc.HealthStub(channel))
                stub = inference_pb2_grpc.InferenceStub(channel)
                request = inference_pb2.GenerateRequest(token_ids=ids_of(5), max_tokens=1)
                assert [message async for message in stub.Generate(request)]
                await until(lambda: bool(sink.spans))
                page = await scrape_port(port)
                process.send_signal(signal.SIGTERM)
                _, err = await process.communicate()
        (span,) = sink.spans
    assert process.returncode == 0, err
    assert page.value("paceline_requests_total", method="Generate", code="OK") == 1
    assert "paceline_store_available" in page.families
    assert not page.labels("paceline_store_available"), "there is no store"
    assert span.name == "text_completion demo"


async def test_a_metrics_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        argv = ("--verifier", "127.0.0.1:1", "--port", "0", "--metrics-port", port)
        process = await launch(*argv)
        _, err = await process.communicate()
    assert process.returncode == 2
    assert f"error: metrics_port: cannot listen on port {port} of 127.0.0.1" in err.decode()
