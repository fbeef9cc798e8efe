"""A verifier's life: model, engine, serve."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path

import uvloop
from paceline.v1 import worker_pb2

from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.loader import LoadedModel, load
from common.model.medusa.heads import MedusaHeads
from common.model.mtp import checkpoint as mtp_checkpoint
from common.model.runner import Runner
from common.rpc import convert, worker, worker_process
from common.store.pools import open_pools
from common.telemetry.span import Traces
from common.telemetry.traces import open_traces
from verifier import metrics
from verifier.config import LEAST_KV_BYTES, VerifierConfig
from verifier.cost import StepCost, measure
from verifier.engine import Engine
from verifier.heads import Weights, head_for, load_head, load_heads, runner_options
from verifier.links import DrafterLinks
from verifier.methods import Head
from verifier.service import VerifierService, status
from verifier.sessions import Sessions

_log = logging.getLogger(__name__)


def run(settings: VerifierConfig) -> None:
    """Loads the model and serves it."""
    traces = open_traces(settings.tracing, "verifier")
    if settings.eagle not in ("", settings.model):  # to load the model may take minutes
        eagle_checkpoint.check_there(Path(settings.eagle))
    runner, eagle = _load(settings)
    heads = load_heads(settings.medusa, runner) if settings.medusa else None
    cost = StepCost(*measure(runner))
    try:
        uvloop.run(serve(settings, runner, heads, eagle, cost, traces))
    finally:
        traces.close()


def _load(settings: VerifierConfig) -> tuple[Runner, Head | None]:
    """The model, and the head that reads its states, where there is one."""
    wanted = bool(settings.medusa or settings.eagle)
    loaded = worker_process.load_model(
        settings, partial(load, quantize=settings.quantize, keep_output=wanted)
    )
    weights = _head_of(settings, loaded)
    if not settings.medusa:  # it was kept to see whose head it is
        loaded = replace(loaded, output_weight=None)
    runner = worker_process.make_runner(
        settings,
        loaded,
        kv_bytes=settings.engine.kv_bytes,
        least_kv_bytes=LEAST_KV_BYTES,
        block_tokens=settings.engine.block_tokens,
        max_len=settings.engine.max_len_tokens or None,
        **runner_options(weights),
    )
    return runner, head_for(weights, runner) if weights else None


def _head_of(settings: VerifierConfig, loaded: LoadedModel) -> Weights | None:
    """The weights of the head, where one is named."""
    if settings.eagle:
        own = settings.eagle == settings.model  # which may be a repository of the hub
        return load_head(str(loaded.path) if own else settings.eagle, loaded)
    if mtp_checkpoint.is_usable(loaded.path):
        said = {"setting": "eagle", "value": settings.model}
        _log.info("the model brings a drafting head along, which is not used", extra=said)
    return None


async def serve(
    settings: VerifierConfig,
    runner: Runner,
    heads: MedusaHeads | None,
    eagle: Head | None,
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
        eagle=eagle,
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
