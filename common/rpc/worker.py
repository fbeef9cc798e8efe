"""The `Worker` service, which verifiers and drafters share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any

import grpc.aio
from paceline.v1 import worker_pb2, worker_pb2_grpc

from common import tokenizer
from common.accelerator import accelerator_name
from common.model.runner import Runner
from common.rpc.watches import Watches, interval_s

SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name


def describe(
    runner: Runner, *, tier: worker_pb2.Tier, name: str, incarnation: int, pool: str = ""
) -> worker_pb2.DescribeResponse:
    """What a worker is.

    Args:
        runner: Its model.
        tier: Its tier.
        name: The name its model is served under.
        incarnation: New at each start.
        pool: The pool it belongs to.
    """
    loaded = runner.loaded
    return worker_pb2.DescribeResponse(
        tier=tier,
        incarnation=incarnation,
        model=name or loaded.name,
        tokenizer_fingerprint=tokenizer.fingerprint(loaded.path),
        numerics_fingerprint=runner.fingerprint,
        vocab_size=loaded.vocab_size,
        max_model_len=runner.max_len,
        eos_token_ids=loaded.eos_token_ids,
        version=version("paceline-server"),
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        pool=pool,
        accelerator=accelerator_name(loaded.device),
    )


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """Answers who the worker is and how busy, and begins its retirement.

    Args:
        description: Constant over the worker's life.
        status: Called whenever someone wants to know the load.
        drain: Begins the drain with the given grace in seconds (None: the default); returns
            how many sequences are still inside.
    """

    def __init__(
        self,
        description: worker_pb2.DescribeResponse,
        status: Callable[[], worker_pb2.WatchStatusResponse],
        drain: Callable[[float | None], int],
    ) -> None:
        self._description = description
        self._status = status
        self._drain = drain
        self._watches = Watches()

    def end(self) -> None:
        """Ends the status streams; see `Watches.end`."""
        self._watches.end()

    async def Describe(self, request: Any, context: Any) -> worker_pb2.DescribeResponse:
        """Says what the worker is."""
        return self._description

    async def WatchStatus(
        self,
        request: worker_pb2.WatchStatusRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[worker_pb2.WatchStatusResponse]:
        """Streams the load until the caller goes away or the worker is done."""
        every_s = interval_s(request.interval_ms)
        while self._watches.on:
            yield self._status()
            await self._watches.pause(every_s)

    async def Drain(
        self, request: worker_pb2.DrainRequest, context: Any
    ) -> worker_pb2.DrainResponse:
        """Stops admission; running requests finish."""
        return worker_pb2.DrainResponse(remaining=self._drain(request.grace_s or None))
