"""A verifier's life: model, engine, serve."""

from __future__ import annotations

import asyncio
import secrets
from functools import partial
from pathlib import Path

import uvloop
from paceline.v1 import worker_pb2

from common.model.loader import load
from common.model.medusa import MedusaHeads, head_dtype
from common.model.runner import Runner
from common.rpc import convert, worker, worker_process
from common.store.pools import open_pools
from common.telemetry.span import Traces
from common.telemetry.traces import open_traces
from verifier import metrics
from verifier.config import LEAST_KV_BYTES, VerifierConfig
from verifier.cost import StepCost, measure
from verifier.engine import Engine
from verifier.links import DrafterLinks
from verifier.service import VerifierService, status
from verifier.sessions import Sessions


def run(settings: VerifierConfig) -> None:
    """Loads the model and serves it."""
    traces = open_traces(settings.tracing, "verifier")
    runner = worker_process.load_runner(
        settings,
        partial(load, quantize=settings.quantize, keep_output=bool(settings.medusa)),
        kv_bytes=settings.engine.kv_bytes,
        least_kv_bytes=LEAST_KV_BYTES,
        block_tokens=settings.engine.block_tokens,
        max_len=settings.engine.max_len_tokens or None,
    )
    heads = load_heads(settings.medusa, runner) if settings.medusa else None
    try:
        uvloop.run(serve(settings, runner, heads, StepCost(*measure(runner)), traces))
    finally:
        traces.close()


def load_heads(path: str, runner: Runner) -> MedusaHeads:
    """Loads Medusa heads to guess for a model."""
    weight = runner.loaded.output_weight
    assert weight is not None
    return MedusaHeads.load(
        Path(path),
        hidden_size=weight.shape[1],
        vocab_size=weight.shape[0],
        lm_head=weight,
        dtype=head_dtype(runner.loaded.dtype, runner.loaded.device),
        device=runner.loaded.device,
        threads=runner.threads,
    )


async def serve(
    settings: VerifierConfig,
    runner: Runner,
    heads: MedusaHeads | None,
    cost: StepCost,
    traces: Traces,
) -> None:
    """Serves until SIGTERM, SIGINT or `Worker.Drain`."""
    description = worker.describe(
        runner,
        tier=worker_pb2.TIER_VERIFIER,
        name=settings.name,
        incarnation=secrets.randbits(63),
        pool=settings.pool,
    )
    links = DrafterLinks(convert.hello(description), asyncio.get_running_loop(), tls=settings.tls)
    model = f"{description.model}:{description.tokenizer_fingerprint}"
    pools = open_pools(settings.store_url, model, settings.pools)
    engine = Engine(
        runner,
        settings.engine,
        links,
        cost=cost,
        heads=heads,
        lookahead=settings.lookahead,
        shared=pools if settings.share_ngrams else None,
        interval_s=settings.stream_interval_ms / 1e3,
    )
    links.bind(engine)
    description.methods.extend(engine.limits.methods)
    sessions = Sessions(runner.pool.blocks, engine.post, settings.session_ttl_s)
    generation = VerifierService(
        engine,
        runner.loaded.eos_token_ids,
        sessions,
        settings.stream_interval_ms / 1e3,
        numerics=description.numerics_fingerprint,
        traces=traces,
        round_ratio=settings.tracing.round_ratio,
    )
    load = partial(status, engine, sessions, links)
    stored = pools if settings.store_url else None
    try:
        await worker_process.serve(
            settings,
            engine,
            service="verifier",
            description=description,
            status=load,
            metrics=metrics.source(description, load, engine, sessions, stored),
            register=generation.register,
        )
    finally:
        await links.close()
        pools.close()
