"""Workers that do as they are told, for tests of the gateway: real servers, scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from paceline.v1 import (
    types_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)

from common.rpc.server import RunningServer, start
from common.tls_config import TlsConfig

Message = tuple[Sequence[int], Sequence[int]]

NUMERICS = "n"
"""Numerics fingerprint of a scripted verifier."""

DRAFTED, CACHED = 40, 3
"""Draft tokens of every round, and cached tokens, that a scripted verifier reports under way."""


class ScriptedWorker(worker_pb2_grpc.WorkerServicer, verifier_pb2_grpc.VerifierServicer):
    """A worker whose description, load and generation are attributes."""

    def __init__(self, *, tier: str = "verifier", **description: Any) -> None:
        self.description = worker_pb2.DescribeResponse(
            **(
                {
                    "tier": worker_pb2.Tier.Value(f"TIER_{tier.upper()}"),
                    "incarnation": 1,
                    "model": "demo",
                    "numerics_fingerprint": NUMERICS if tier == "verifier" else "",
                    "vocab_size": 4096,
                    "max_model_len": 256,
                    "methods": ["plain", "draft"] if tier == "verifier" else [],
                    "eos_token_ids": [2],
                }
                | description
            )
        )
        self.status = worker_pb2.WatchStatusResponse(accepting=True, step_ms=10)
        self.messages: list[Message] = []
        self.pause_s = 0.0
        self.error: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.requests: list[verifier_pb2.VerifierGenerateRequest] = []
        self.remaining_s: list[float | None] = []
        self.cancelled = asyncio.Event()
        self.mute = asyncio.Event()
        self.address = ""
        self._server: RunningServer | None = None

    async def Describe(self, request, context):  # noqa: N802
        return self.description

    async def WatchStatus(self, request, context):  # noqa: N802
        while not self.mute.is_set():
            yield self.status
            await asyncio.sleep(request.interval_ms / 1000)
        await asyncio.Event().wait()  # until the caller gives up

    async def Generate(self, request, context):  # noqa: N802
        self.requests.append(request)
        self.remaining_s.append(context.time_remaining())
        try:
            if self.error is not None:
                raise self.error
            rounds = 0
            for ids, sources in self.messages:
                await asyncio.sleep(self.pause_s)
                rounds += sum(source != types_pb2.TOKEN_SOURCE_ACCEPTED for source in sources)
                tokens = verifier_pb2.CommittedTokens(
                    ids=ids,
                    sources=sources,
                    rounds=rounds,
                    drafted_tokens=DRAFTED * rounds,
                    cached_tokens=CACHED,
                )
                await context.write(verifier_pb2.VerifierGenerateResponse(tokens=tokens))
            if self.hold is not None:
                await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        await context.write(verifier_pb2.VerifierGenerateResponse(complete=self._complete(request)))

    def _complete(self, request: verifier_pb2.VerifierGenerateRequest) -> Any:
        count = sum(len(ids) for ids, _ in self.messages)
        return verifier_pb2.VerifierComplete(
            finish_reason=types_pb2.FINISH_REASON_LENGTH,
            usage=types_pb2.Usage(
                prompt_tokens=len(request.prompt_ids), completion_tokens=count, cached_tokens=CACHED
            ),
            speculation=types_pb2.SpeculationStats(
                method=request.speculation.method,
                acceptance=types_pb2.ACCEPTANCE_COUPLED,
                rounds=7,
                drafted_tokens=9,
                accepted_tokens=5,
                accepted_per_position=[3, 2],
            ),
        )

    async def start(self, port: int = 0, tls: TlsConfig | None = None) -> None:
        """Begins to serve; `address` says where."""

        def register(server: Any) -> list[str]:
            worker_pb2_grpc.add_WorkerServicer_to_server(self, server)
            verifier_pb2_grpc.add_VerifierServicer_to_server(self, server)
            return ["paceline.v1.Worker", "paceline.v1.Verifier"]

        self._server = await start(register=register, host="127.0.0.1", port=port, tls=tls)
        self.address = f"127.0.0.1:{self._server.port}"

    async def stop(self) -> None:
        """Is gone, at once."""
        if self._server is not None:
            await self._server.stop()
            self._server = None


@asynccontextmanager
async def serving(*workers: ScriptedWorker) -> AsyncIterator[None]:
    """Runs workers for the length of a block."""
    for worker in workers:
        await worker.start()
    try:
        yield
    finally:
        for worker in workers:
            await worker.stop()
