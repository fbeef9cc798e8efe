"""What the processes of verifiers and drafters share: loading the model, serving, draining."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc.aio
import torch
from paceline.v1 import worker_pb2, worker_pb2_grpc

from common import processors
from common.address import check_port
from common.engine_thread import EngineThread, Steppable, stalled
from common.errors import PacelineError, Stuck
from common.model import threads
from common.model.cuda.memory import cache_bytes
from common.model.kv_cache import LayerShape
from common.model.loader import LoadedModel
from common.model.runner import Runner
from common.rpc import server, worker
from common.rpc.channel import WORKER_STREAMS
from common.telemetry.metrics import Source, exposed
from common.worker_config import WorkerConfig

_log = logging.getLogger(__name__)

_POLL_S = 0.02


class WorkerEngine(Steppable, Protocol):
    """An engine, as the process sees it."""

    @property
    def live(self) -> int:
        """Sequences inside."""

    def stop_accepting(self) -> None:
        """Refuses sequences from now on; those inside go on."""


def load_model(config: WorkerConfig, load: Callable[..., LoadedModel]) -> LoadedModel:
    """Loads the model, once it is sure that the ports are free.

    Args:
        config: Names the model and says how to run it.
        load: `loader.load`, or what does the same; told of everything but rounding.

    Raises:
        StartupError: A port is taken, or the model cannot be run.
    """
    check_port(config.host, config.port)
    for flag, port in (
        ("--health-port", config.health_port),
        ("--metrics-port", config.metrics_port),
    ):
        if port is not None:
            check_port(config.host, port, flag)
    most = processors.count()
    if config.threads or torch.get_num_threads() > most:
        torch.set_num_threads(config.threads or most)
    loaded = load(
        config.model,
        dtype=config.dtype,
        device=config.device,
        kernels=config.kernels,
        most_threads=config.most_threads,
    )
    facts = {"model": loaded.name, "device": str(loaded.device), "kernels": loaded.kernels}
    _log.info("model loaded", extra=facts)
    return loaded


def make_runner(
    config: WorkerConfig,
    loaded: LoadedModel,
    *,
    kv_bytes: int,
    least_kv_bytes: int,
    block_tokens: int,
    max_len: int | None = None,
    taps: Sequence[int] = (),
    head_layers: Sequence[LayerShape] = (),
) -> Runner:
    """Makes a model's cache, and finds out how it runs best.

    Args:
        config: Says how to run it.
        loaded: The model.
        kv_bytes: Most memory the key/value cache may take; 0 for what there is, see `cache_bytes`.
        least_kv_bytes: The least of that.
        block_tokens: Positions in a block of the cache.
        max_len: Positions a sequence may have; the model's own limit where None.
        taps: See `Runner`.
        head_layers: The same.

    Raises:
        ModelError: It cannot be run.
    """
    kv_bytes = kv_bytes or cache_bytes(loaded.device, config.gpu_memory_share, least_kv_bytes)
    runner = Runner(
        loaded,
        kv_bytes=kv_bytes,
        block_tokens=block_tokens,
        max_len=max_len,
        taps=taps,
        head_layers=head_layers,
    )
    room = {"kv_bytes": kv_bytes, "tokens": runner.pool.blocks.count * block_tokens}
    _log.info("cache made", extra=room)
    threads.choose(runner)
    # What is there now stays: a full collection need not walk half a million objects of torch and
    # transformers while requests wait.
    gc.collect()
    gc.freeze()
    return runner


async def serve(
    config: WorkerConfig,
    engine: WorkerEngine,
    *,
    service: str,
    description: worker_pb2.DescribeResponse,
    status: Callable[[], worker_pb2.WatchStatusResponse],
    register: server.Register,
    metrics: Source,
    on_idle: Callable[[], None] | None = None,
) -> None:
    """Runs the engine and serves it, beside the `Worker` service, until told to stop.

    Args:
        config: Address and grace period.
        engine: The engine; gets its thread here.
        service: The service's name.
        description: What `Describe` answers.
        status: What `WatchStatus` answers.
        register: Adds the service's own servicer.
        metrics: What Prometheus is told.
        on_idle: Called in the drain when the last sequence has left.

    Raises:
        StartupError: The address cannot be bound.
        Stuck: The engine did not come back from a pass.
        PacelineError: It died.
    """
    retirement, loop = server.Retirement(), asyncio.get_running_loop()

    def drain(grace_s: float | None) -> int:
        engine.stop_accepting()
        retirement.begin(grace_s)
        return engine.live

    async def finish() -> None:
        engine.stop_accepting()
        while engine.live:  # noqa: ASYNC110  (the engine knows nothing of event loops)
            await asyncio.sleep(_POLL_S)
        workers.end()
        if on_idle is not None:
            on_idle()

    def register_all(target: grpc.aio.Server) -> list[str]:
        worker_pb2_grpc.add_WorkerServicer_to_server(workers, target)
        return [*register(target), worker.SERVICE]

    def die() -> None:
        loop.call_soon_threadsafe(retirement.begin, 0.0)

    async def watch() -> None:
        await stalled(engine, config.stall_s)
        _log.error("engine stalled", extra={"stall_s": config.stall_s})
        retirement.begin(0.0)

    workers = worker.WorkerService(description, status, drain)
    thread = EngineThread(engine, f"{service}-engine", die)
    thread.start()
    watching = asyncio.ensure_future(watch()) if config.stall_s else None
    try:
        async with exposed(config.host, config.metrics_port, metrics):
            await server.serve(
                register=register_all,
                host=config.host,
                port=config.port,
                grace_s=config.grace_s,
                on_ready=lambda port: server.announce(service, port),
                on_drain=finish,
                retirement=retirement,
                max_streams=WORKER_STREAMS,
                health_port=config.health_port,
                tls=config.tls,
            )
    finally:
        lost = watching is not None and watching.done()
        if watching is not None:
            watching.cancel()
        if not lost:  # else there is no end to wait for
            lost = not thread.stop(config.stall_s or None)
    if lost:
        waited = f"{config.stall_s:g} s (stall_s)"
        raise Stuck(f"a pass of the {service} did not come back in {waited}")
    if thread.failed:
        raise PacelineError(f"the {service}'s engine died")
