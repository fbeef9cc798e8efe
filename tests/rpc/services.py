"""Verifiers and drafters as real servers in the test's own process, and one drafter that lies."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import grpc
import grpc.aio
from paceline.v1 import (
    drafter_pb2,
    drafter_pb2_grpc,
    types_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

from common.engine_thread import EngineThread
from common.lanes.far import LanePort
from common.model.runner import Runner
from common.rpc import server, worker
from common.rpc.channel import open_channel
from common.telemetry.metrics import Source
from common.telemetry.span import Traces
from common.tls_config import TlsConfig
from drafter import metrics as drafter_metrics
from drafter.config import EngineConfig as DraftConfig
from drafter.engine import DraftEngine
from drafter.service import DrafterService
from drafter.service import status as drafter_status
from tests.waiting import until
from verifier import metrics as verifier_metrics
from verifier.config import EngineConfig
from verifier.engine import Engine
from verifier.links import DrafterLinks
from verifier.methods.draft import DraftProposer
from verifier.service import VerifierService
from verifier.service import status as verifier_status
from verifier.sessions import Sessions

_INCARNATIONS = itertools.count(1)

HOST = "127.0.0.1"
DRAFT_TOKENS = 5
"""Asked for by every request, so that nothing hangs on measured times."""

Way = Literal["grpc", "near", "far"]
"""What a drafter tells its verifiers by: gRPC alone, or lanes of one kind."""


@dataclass
class Text:
    """What one `Generate` streamed."""

    ids: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    totals: verifier_pb2.CommittedTokens | None = None
    """The last message of tokens, for its running totals."""
    complete: verifier_pb2.VerifierComplete | None = None

    def take(self, message: verifier_pb2.VerifierGenerateResponse) -> None:
        assert self.complete is None, "nothing follows the end"
        assert len(message.tokens.ids) == len(message.tokens.sources) > 0
        self.totals = message.tokens
        self.ids.extend(message.tokens.ids)
        self.sources.extend(message.tokens.sources)
        if message.HasField("complete"):
            self.complete = message.complete

    async def rest(self, call: Any) -> None:
        """Reads a stream to its end, by `read` as before."""
        while (message := await call.read()) is not grpc.aio.EOF:
            self.take(message)

    @property
    def speculation(self) -> types_pb2.SpeculationStats:
        assert self.complete is not None, "the stream ended early"
        return self.complete.speculation


def ask(
    prompt: Sequence[int], max_tokens: int, *drafters: str, **fields: Any
) -> verifier_pb2.VerifierGenerateRequest:
    """A request; keywords are those of the message."""
    fields.setdefault("sampling", types_pb2.SamplingParams(temperature=0.8, seed=7))
    method = "draft" if drafters else "plain"
    speculation = types_pb2.SpeculationOptions(method=method, draft_tokens=DRAFT_TOKENS)
    fields.setdefault("speculation", speculation)
    return verifier_pb2.VerifierGenerateRequest(
        request_id="test",
        prompt_ids=prompt,
        max_tokens=max_tokens,
        ignore_eos=True,
        drafters=[verifier_pb2.DrafterEndpoint(address=address) for address in drafters],
        **fields,
    )


@dataclass
class RunningVerifier:
    """A verifier that serves."""

    engine: Engine
    runner: Runner
    address: str
    channel: grpc.aio.Channel
    server: server.RunningServer
    drained: list[float | None]
    """Grace periods that `Worker.Drain` asked for."""
    metrics: Source
    """What Prometheus would be told."""

    def __post_init__(self) -> None:
        self.stub = verifier_pb2_grpc.VerifierStub(self.channel)
        self.worker = worker_pb2_grpc.WorkerStub(self.channel)

    @property
    def proposer(self) -> DraftProposer:
        return self.engine.methods.draft

    async def generate(self, request: verifier_pb2.VerifierGenerateRequest) -> Text:
        text = Text()
        async for message in self.stub.Generate(request, timeout=30):
            text.take(message)
        return text

    async def empty(self) -> None:
        """Waits until nothing is inside, and checks the books."""
        await _empty(self.engine, self.runner)


@asynccontextmanager
async def verifying(
    runner: Runner,
    config: EngineConfig | None = None,
    *,
    fingerprint: str = "",
    idle_s: float = 60.0,
    traces: Traces | None = None,
    tls: TlsConfig | None = None,
) -> AsyncIterator[RunningVerifier]:
    """Runs a verifier for the length of a block; where it makes traces, all rounds are in them.

    Drafters are called with its certificates; it is itself called in plaintext.
    """
    hello = drafter_pb2.Hello(
        tokenizer_fingerprint=fingerprint, vocab_size=runner.loaded.vocab_size
    )
    links = DrafterLinks(hello, asyncio.get_running_loop(), idle_s, tls)
    engine = Engine(runner, config or EngineConfig(), links)
    links.bind(engine)
    drained: list[float | None] = []
    sessions = Sessions(runner.pool.blocks, engine.post)

    def drain(grace_s: float | None) -> int:
        engine.stop_accepting()
        drained.append(grace_s)
        return engine.live

    description = worker_pb2.DescribeResponse(
        tier=worker_pb2.TIER_VERIFIER,
        incarnation=next(_INCARNATIONS),
        model="demo",
        numerics_fingerprint=runner.fingerprint,
        vocab_size=runner.loaded.vocab_size,
        max_model_len=runner.max_len,
        methods=engine.limits.methods,
    )
    status = partial(verifier_status, engine, sessions, links)
    workers = worker.WorkerService(description, status, drain)
    service = VerifierService(
        engine,
        runner.loaded.eos_token_ids,
        sessions,
        numerics=runner.fingerprint,
        traces=traces,
        round_ratio=1.0,
    )
    metrics = verifier_metrics.source(description, status, engine, sessions)
    async with _served(engine, service.register, workers) as started:
        address = f"{HOST}:{started.port}"
        async with open_channel(address) as channel:
            yield RunningVerifier(engine, runner, address, channel, started, drained, metrics)
        await links.close()


class RunningDrafter:
    """A drafter that can be stopped and come back at the same address."""

    def __init__(
        self,
        runner: Runner,
        config: DraftConfig,
        fingerprint: str,
        max_streams: int,
        way: Way,
        tls: TlsConfig,
    ) -> None:
        self.runner = runner
        self.address = ""
        self.lane_port: LanePort | None = None
        self._config, self._fingerprint = config, fingerprint
        self._max_streams, self._way, self._tls = max_streams, way, tls
        self._port = 0
        self._exit = AsyncExitStack()

    async def start(self) -> None:
        vocab_size = self.runner.loaded.vocab_size
        hello = drafter_pb2.Hello(tokenizer_fingerprint=self._fingerprint, vocab_size=vocab_size)
        self.engine = DraftEngine(self.runner, self._config)
        if self._way == "far":
            port = LanePort(HOST, 0, self._tls)
            self.lane_port = await self._exit.enter_async_context(port)
        self.service = DrafterService(
            self.engine,
            hello,
            self._max_streams,
            lanes=self._way == "near",
            lane_port=self.lane_port,
        )
        description = worker_pb2.DescribeResponse(
            tier=worker_pb2.TIER_DRAFTER,
            tokenizer_fingerprint=self._fingerprint,
            vocab_size=vocab_size,
        )
        status = partial(drafter_status, self.engine)
        workers = worker.WorkerService(description, status, lambda grace_s: self.engine.live)
        self.metrics = drafter_metrics.source(description, status, self.engine)
        served = _served(self.engine, self.service.register, workers, self._port, self._tls)
        started = await self._exit.enter_async_context(served)
        self._port, self.address = started.port, f"{HOST}:{started.port}"

    async def stop(self) -> None:
        """Is gone, at once; its cache with it."""
        await self._exit.aclose()

    async def empty(self) -> None:
        """Waits until nothing is mirrored, and checks the books."""
        await _empty(self.engine, self.runner)


@asynccontextmanager
async def drafting(
    runner: Runner,
    config: DraftConfig | None = None,
    *,
    fingerprint: str = "",
    max_streams: int = 64,
    way: Way = "near",
    tls: TlsConfig | None = None,
) -> AsyncIterator[RunningDrafter]:
    """Runs a drafter for the length of a block, with lanes for one kind of verifiers or none."""
    drafter = RunningDrafter(
        runner, config or DraftConfig(), fingerprint, max_streams, way, tls or TlsConfig()
    )
    await drafter.start()
    try:
        yield drafter
    finally:
        await drafter.stop()


@asynccontextmanager
async def _served(
    engine: Engine | DraftEngine,
    register: server.Register,
    workers: worker.WorkerService,
    port: int = 0,
    tls: TlsConfig | None = None,
) -> AsyncIterator[server.RunningServer]:
    def register_all(target: grpc.aio.Server) -> list[str]:
        worker_pb2_grpc.add_WorkerServicer_to_server(workers, target)
        return [*register(target), worker.SERVICE]

    def die() -> None:
        raise AssertionError("the engine died")

    thread = EngineThread(engine, "engine", die)
    thread.start()
    started = await server.start(register=register_all, host=HOST, port=port, tls=tls)
    try:
        yield started
    finally:
        await started.stop()
        await asyncio.to_thread(thread.stop)
        await until(lambda: _emptied(engine))
    assert not thread.failed


async def _empty(engine: Engine | DraftEngine, runner: Runner) -> None:
    await until(lambda: not engine.live and not runner.pool.blocks.held)
    runner.pool.blocks.check()


def _emptied(engine: Engine | DraftEngine) -> bool:
    """Takes the last notes: of calls that ended with the server."""
    engine.step()
    return not engine.live


Reaction = Callable[[drafter_pb2.DraftRequest], Iterable[drafter_pb2.DraftResponse]]


class ScriptedDrafter(drafter_pb2_grpc.DrafterServicer):
    """Accepts every stream and session, then answers as it is told to; else it hangs."""

    def __init__(self, react: Reaction = lambda request: ()) -> None:
        self._react = react
        self.requests: list[drafter_pb2.DraftRequest] = []
        self.address = ""

    async def Draft(self, request_iterator, context):
        requests = aiter(request_iterator)
        await anext(requests)
        await context.send_initial_metadata(())
        async for request in requests:
            self.requests.append(request)
            readies = [
                drafter_pb2.Ready(session=opened.session, incarnation=opened.incarnation)
                for opened in request.opens
            ]
            yield drafter_pb2.DraftResponse(readies=readies)
            for response in self._react(request):
                yield response

    @property
    def commits(self) -> list[drafter_pb2.Commit]:
        return [commit for request in self.requests for commit in request.commits]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedDrafter]:
        def register(target: grpc.aio.Server) -> list[str]:
            drafter_pb2_grpc.add_DrafterServicer_to_server(self, target)
            return ["paceline.v1.Drafter"]

        started = await server.start(register=register, host=HOST, port=0)
        self.address = f"{HOST}:{started.port}"
        try:
            yield self
        finally:
            await started.stop()


class Brake:
    """Holds a model's forward passes; lets through as many as it is told."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self._open = False

    def let(self, passes: int) -> None:
        self._passes.release(passes)

    def open(self) -> None:
        self._open = True
        self._passes.release()

    def wait(self) -> None:
        if not self._open:
            assert self._passes.acquire(timeout=30), "nobody released the brake"


@contextmanager
def braked(runner: Runner) -> Iterator[Brake]:
    """Puts a brake on a runner for the length of a block."""
    brake, forward = Brake(), runner.forward

    def held(*batch: Any, **options: Any) -> Any:
        brake.wait()
        return forward(*batch, **options)

    runner.forward = held  # type: ignore[method-assign]
    try:
        yield brake
    finally:
        brake.open()
        runner.forward = forward  # type: ignore[method-assign]


async def ending(call: Any) -> grpc.StatusCode:
    """Reads a stream to its end; the code it ends with."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The error a stream ends with."""
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call succeeded")
