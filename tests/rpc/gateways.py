"""A gateway in the test's own process, real from its server to its channels to workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import fleet_pb2_grpc, inference_pb2, inference_pb2_grpc

from common.rpc.channel import Line
from common.rpc.health import Health
from common.rpc.server import RunningServer, start
from common.store.sessions import MemorySessions, SessionStore
from common.telemetry.metrics import Source
from common.telemetry.span import Traces
from common.tls_config import TlsConfig
from common.tokenizer import Tokenizer
from gateway import metrics
from gateway.admission import Admission
from gateway.auth.authenticator import Authenticator
from gateway.auth.config import AuthConfig
from gateway.config import FailoverConfig
from gateway.fleet import Fleet
from gateway.fleet_service import FleetService
from gateway.generation import Generations
from gateway.service import MAX_RECEIVED_BYTES, InferenceService
from gateway.sessions import Sessions
from gateway.watch import Watch
from tests.waiting import until


@dataclass(frozen=True)
class Gateway:
    stub: inference_pb2_grpc.InferenceStub
    operators: fleet_pb2_grpc.FleetStub
    fleet_service: FleetService
    health: health_pb2_grpc.HealthStub
    fleet: Fleet
    admission: Admission
    server: RunningServer
    metrics: Source

    async def generate(self, deadline_s: float | None = 20, **request: Any) -> Answer:
        call = self.stub.Generate(inference_pb2.GenerateRequest(**request), timeout=deadline_s)
        return Answer([message async for message in call])

    async def serving(self) -> bool:
        answer = await self.health.Check(health_pb2.HealthCheckRequest())
        return answer.status == health_pb2.HealthCheckResponse.SERVING


class Answer:
    """A generation as the client saw it."""

    def __init__(self, messages: list[inference_pb2.GenerateResponse]) -> None:
        self.started = messages[0].started
        self.chunks = [message.chunk for message in messages if message.HasField("chunk")]
        self.complete = messages[-1].complete
        self.text = "".join(chunk.text for chunk in self.chunks)
        self.ids = [id_ for chunk in self.chunks for id_ in chunk.token_ids]


@asynccontextmanager
async def gateway(
    *verifiers: str,
    drafters: tuple[str, ...] = (),
    tokenizer: Tokenizer | None = None,
    max_concurrent: int = 8,
    max_generation_s: float = 60,
    slow_reader_s: float = 60,
    failover: FailoverConfig | None = None,
    store: SessionStore | None = None,
    auth: AuthConfig | None = None,
    tls: TlsConfig | None = None,
    fleet_tls: TlsConfig | None = None,
    ready: bool = True,
    traces: Traces | None = None,
) -> AsyncIterator[Gateway]:
    health = Health(serving=False)
    failover = failover or FailoverConfig(wait_s=0.3)
    loaded = {tokenizer.fingerprint: {"": tokenizer}} if tokenizer else {}
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(
            Fleet(loaded, interval_ms=50, on_change=health.set_serving, tls=fleet_tls)
        )
        fleet.update("verifier", verifiers)
        fleet.update("drafter", drafters)
        kept = store or MemorySessions(60)
        sessions = Sessions(fleet, kept)
        stack.push_async_callback(sessions.close)
        admission, watch = Admission(max_concurrent), Watch(traces)
        generations = Generations(fleet, sessions, failover)
        authenticator = Authenticator(auth or AuthConfig())
        service = InferenceService(
            fleet,
            generations,
            admission,
            max_generation_s,
            authenticator,
            watch,
            slow_reader_s,
        )
        operators = FleetService(fleet, authenticator)
        server = await start(
            register=lambda target: [*service.register(target), *operators.register(target)],
            host="127.0.0.1",
            port=0,
            health=health,
            max_receive_bytes=MAX_RECEIVED_BYTES,
            tls=tls,
        )
        stack.push_async_callback(server.stop)
        stack.push_async_callback(operators.end)
        line = Line(f"127.0.0.1:{server.port}", tls or TlsConfig())
        channel = await stack.enter_async_context(line.open())
        running = Gateway(
            stub=inference_pb2_grpc.InferenceStub(channel),
            operators=fleet_pb2_grpc.FleetStub(channel),
            fleet_service=operators,
            health=health_pb2_grpc.HealthStub(channel),
            fleet=fleet,
            admission=admission,
            server=server,
            metrics=metrics.source(watch, admission, generations, fleet, kept),
        )
        if ready:
            handles = [*fleet._verifiers.listed.values(), *fleet._drafters.listed.values()]
            await until(lambda: all(handle.present for handle in handles))
        yield running


def ids_of(*ids: int) -> inference_pb2.TokenIds:
    return inference_pb2.TokenIds(ids=ids)
