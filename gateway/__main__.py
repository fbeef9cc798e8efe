"""`python -m gateway`: configuration, tokenizers, fleet, serve."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import uvloop

from common import priority
from common.rpc import process, server
from common.rpc.health import Health
from common.store.sessions import open_sessions
from common.telemetry.metrics import exposed
from common.telemetry.traces import open_traces
from gateway import metrics, tokenizers
from gateway.admission import Admission
from gateway.auth.authenticator import Authenticator
from gateway.config import GatewayConfig
from gateway.discovery.discovery import Discovery
from gateway.discovery.target import parse_targets
from gateway.fleet import Fleet
from gateway.fleet_service import FleetService
from gateway.generation import Generations
from gateway.service import MAX_RECEIVED_BYTES, InferenceService
from gateway.sessions import Sessions
from gateway.tokenizers import Tokenizers
from gateway.watch import Watch


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a gateway until it is told to stop; returns the exit status."""
    return process.run(
        GatewayConfig,
        run,
        argv,
        prog="gateway",
        description="Paceline's public service: text in, text out. Needs no GPU.",
    )


def run(settings: GatewayConfig) -> None:
    """Loads the tokenizers and serves."""
    priority.stand_back()  # a model may run on the same machine
    uvloop.run(serve(settings, tokenizers.load(settings.models)))


async def serve(settings: GatewayConfig, loaded: Tokenizers) -> None:
    """Serves until SIGTERM or SIGINT."""
    health = Health(serving=False)
    authenticator = Authenticator(settings.auth)
    async with AsyncExitStack() as stack:
        store = open_sessions(settings.store_url, settings.session_ttl_s)
        stack.push_async_callback(store.close)
        fleet = await stack.enter_async_context(
            Fleet(
                loaded,
                interval_ms=settings.status_interval_ms,
                on_change=health.set_serving,
                tls=settings.fleet_tls,
            )
        )
        for tier, entries in (("verifier", settings.verifiers), ("drafter", settings.drafters)):
            discovery = Discovery(
                parse_targets(f"{tier}s", entries),
                partial(fleet.update, tier),
                dns_interval_s=settings.dns_interval_s,
                kubeconfig=settings.kubeconfig,
            )
            await stack.enter_async_context(discovery)
        sessions = Sessions(fleet, store)
        stack.push_async_callback(sessions.close)
        traces = open_traces(settings.tracing, "gateway")
        stack.push_async_callback(asyncio.to_thread, traces.close)
        generations = Generations(fleet, sessions, settings.failover)
        admission, watch = Admission(settings.max_concurrent), Watch(traces)
        service = InferenceService(
            fleet,
            generations,
            admission,
            settings.max_generation_s,
            authenticator,
            watch,
            settings.slow_reader_s,
        )
        stored = store if settings.store_url else None
        source = metrics.source(watch, admission, generations, fleet, stored)
        await stack.enter_async_context(exposed(settings.host, settings.metrics_port, source))
        operators = FleetService(fleet, authenticator)
        await server.serve(
            register=lambda target: [*service.register(target), *operators.register(target)],
            host=settings.host,
            port=settings.port,
            grace_s=settings.grace_s,
            health=health,
            max_receive_bytes=MAX_RECEIVED_BYTES,
            tls=settings.tls,
            on_ready=partial(server.announce, "gateway"),
            health_port=settings.health_port,
            on_drain=operators.end,
        )


if __name__ == "__main__":
    sys.exit(main())
