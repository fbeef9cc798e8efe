"""A drafter's life: model, engine, serve."""

from __future__ import annotations

import logging
import secrets
from contextlib import AsyncExitStack
from functools import partial

import uvloop
from paceline.v1 import worker_pb2

from common.address import check_port
from common.lanes.far import LanePort
from common.model.runner import Runner
from common.rpc import convert, worker, worker_process
from common.tls_config import loopback
from drafter import metrics
from drafter.config import LEAST_KV_BYTES, DrafterConfig
from drafter.engine import DraftEngine
from drafter.rounding import load_drafter
from drafter.service import DrafterService, status

_log = logging.getLogger(__name__)


def run(settings: DrafterConfig) -> None:
    """Loads the model and serves it."""
    if settings.lane_port is not None:
        check_port(settings.host, settings.lane_port, "--lane-port")
    elif not loopback(settings.host):
        _log.info("verifiers of other machines are told by gRPC; --lane-port would be sooner")
    load = partial(load_drafter, quantize=settings.quantize, keep_output=False)
    runner = worker_process.make_runner(
        settings,
        worker_process.load_model(settings, load),
        kv_bytes=settings.engine.kv_bytes,
        least_kv_bytes=LEAST_KV_BYTES,
        block_tokens=settings.engine.block_tokens,
    )
    uvloop.run(serve(settings, runner))


async def serve(settings: DrafterConfig, runner: Runner) -> None:
    """Serves until SIGTERM, SIGINT or `Worker.Drain`."""
    description = worker.describe(
        runner,
        tier=worker_pb2.TIER_DRAFTER,
        name=settings.name,
        incarnation=secrets.randbits(63),
        pool=settings.pool,
    )
    engine = DraftEngine(runner, settings.engine)
    load = partial(status, engine)
    async with AsyncExitStack() as stack:
        port = None
        if settings.lane_port is not None:
            lanes = LanePort(settings.host, settings.lane_port, settings.tls)
            port = await stack.enter_async_context(lanes)
        drafting = DrafterService(
            engine,
            convert.hello(description),
            settings.max_streams,
            lanes=settings.lanes,
            lane_port=port,
        )
        await worker_process.serve(
            settings,
            engine,
            service="drafter",
            description=description,
            status=load,
            metrics=metrics.source(description, load, engine),
            register=drafting.register,
            on_idle=drafting.end,
        )
