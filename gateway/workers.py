"""One worker: what it is, how busy it is, whether it is there.

A handle follows its worker for as long as its address is listed or, after that, the worker is
there, and then until the last call on it is over. A broken status stream is how the loss of a
worker shows; requests in flight find out by themselves, on their own calls.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from paceline.v1 import verifier_pb2_grpc, worker_pb2, worker_pb2_grpc

from common.errors import DeadlineExceeded, Unavailable
from common.rpc.channel import Line
from common.rpc.convert import TIERS
from common.rpc.errors import from_rpc_error
from common.tls_config import TlsConfig
from gateway.backoff import Backoff
from gateway.breaker import Breaker
from gateway.candidate import Candidate, Description, Load
from gateway.reports import Reports

log = logging.getLogger(__name__)

Call = grpc.aio.UnaryStreamCall[Any, Any]

_DESCRIBE_TIMEOUT_S = 5.0
_DRAIN_TIMEOUT_S = 10.0
_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 0.5

# A worker that says nothing for this long is lost, though its connection may still stand. Well
# above a stalled event loop on a busy machine, and twice the longest time between two reports.
_SILENCE_S = 10.0

# Others come before a worker that has said nothing for so long, and in the time of so many reports.
_LATE_S, _LATE_REPORTS = 2.0, 2


class WorkerHandle:
    """A worker at a fixed address.

    Args:
        address: host:port.
        tier: "verifier" or "drafter".
        interval_ms: Time between two load reports.
        on_change: Called when the worker comes or goes.
        tls: Certificates; without any the worker is called in plaintext.

    Attributes:
        stub: For generation; of use where the worker is a verifier.
        breaker: Told by callers how their calls went. Each process at the address has its own: who
            calls keeps the one that was there when the call began.
        described: What the worker says it is; None while it has never been reached.
        status: Its last report; None while it is lost.
    """

    def __init__(
        self,
        address: str,
        tier: str,
        *,
        interval_ms: int,
        on_change: Callable[[], None],
        tls: TlsConfig | None = None,
    ) -> None:
        self.address = address
        self._tier = tier
        self._interval_ms = interval_ms
        self._on_change = on_change
        self._line = Line(address, tls or TlsConfig())
        self._outdated = False  # the certificates that the channel shows
        self._connect()
        self.breaker = Breaker()
        self.described: worker_pb2.DescribeResponse | None = None
        self.status: worker_pb2.WatchStatusResponse | None = None
        self._description: Description | None = None
        self._reports = Reports()
        self._load: Load | None = None
        self._heard_at = 0.0
        self._calls: set[Call] = set()
        self._reserved = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._left = asyncio.Event()
        self._told: set[str] = set()  # why it is not there, since it last was

    @property
    def present(self) -> bool:
        """Whether the worker is there."""
        return self._load is not None

    @property
    def candidate(self) -> Candidate | None:
        """The worker as placement sees it; None while it has never been reached."""
        if self._description is None:
            return None
        return Candidate(
            address=self.address,
            description=self._description,
            load=self._load,
            in_flight=self.in_flight_count,
            broken=not self.breaker.allows,
            late=self._late,
        )

    @property
    def _late(self) -> bool:
        allowed_s = max(_LATE_S, _LATE_REPORTS * self._interval_ms / 1e3)
        return time.monotonic() - self._heard_at > allowed_s

    @property
    def in_flight_count(self) -> int:
        """This gateway's own requests on it, or drafted for by it."""
        return len(self._calls) + self._reserved

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Counts a request that is about to be sent: of many at once, not all choose this one."""
        self._reserved += 1
        try:
            yield
        finally:
            self._reserved -= 1

    @contextmanager
    def in_flight(self, call: Call) -> Iterator[None]:
        """Counts a call to the worker; ends it then, or before where the worker falls silent."""
        self.breaker.tried()
        self._calls.add(call)
        self._idle.clear()
        try:
            yield
        finally:
            self._calls.discard(call)
            call.cancel()
            if not self._calls:
                self._idle.set()

    async def live(self) -> None:
        """Follows the worker until it has left and what ran on it is over; then disconnects."""
        following = asyncio.create_task(self._follow())
        try:
            await self._left.wait()
            await self._idle.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await self._channel.close()

    def _connect(self) -> None:
        self._channel = self._line.open()
        self._worker = worker_pb2_grpc.WorkerStub(self._channel)
        self.stub = verifier_pb2_grpc.VerifierStub(self._channel)

    async def _reconnect(self) -> None:
        """Connects with the certificates of today, as soon as no call is left on the channel."""
        self._outdated = await self._line.renewed() or self._outdated
        if self._outdated and not self._calls:
            former = self._channel
            self._connect()  # before it waits: who calls meanwhile finds a channel that is open
            self._outdated = False
            await former.close()

    async def drain(self, grace_s: int) -> int:
        """Has the worker stop admission and end; returns the sequences still in it.

        Args:
            grace_s: What running requests get; 0 is the worker's own default.

        Raises:
            PacelineError: It did not answer.
        """
        request, worker = worker_pb2.DrainRequest(grace_s=grace_s), f"{self._tier} {self.address}"
        try:
            answer = await self._worker.Drain(request, timeout=_DRAIN_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            mapped = from_rpc_error(error, worker)
            if isinstance(mapped, DeadlineExceeded):  # ours, not the caller's
                mapped = Unavailable(f"{worker} did not answer in {_DRAIN_TIMEOUT_S:g} s")
            raise mapped from error
        return int(answer.remaining)

    def leave(self) -> None:
        """Begins the end: the worker is no longer part of the fleet."""
        self._left.set()

    async def _follow(self) -> None:
        """Keeps description and load up to date, for ever."""
        backoff = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S)
        while True:
            try:
                await self._follow_once()
                reason = "its status stream ended"
            except grpc.aio.AioRpcError as error:
                reason = str(from_rpc_error(error))
            except TimeoutError:
                reason = f"silent for {_SILENCE_S:g} s"
                for call in self._calls:  # their connections stand: they would not find out
                    call.cancel()
            except _UnusableError as error:
                reason = str(error)
            except Exception as error:
                # A defect of ours must not lose the worker for good.
                reason = f"{type(error).__name__}: {error}"
                if _kind(reason) not in self._told:
                    log.exception("worker cannot be followed", extra={"address": self.address})
            if self.present:
                backoff.reset()
            self._lost(reason)
            await self._reconnect()
            await backoff.pause()

    async def _follow_once(self) -> None:
        answer = await self._worker.Describe(
            worker_pb2.DescribeRequest(), timeout=_DESCRIBE_TIMEOUT_S
        )
        if answer.tier != TIERS[self._tier]:
            raise _UnusableError(f"it is no {self._tier}")
        if self.described is not None and self.described.incarnation != answer.incarnation:
            self.breaker = Breaker()
        self.described, self._description = answer, _description(answer)
        request = worker_pb2.WatchStatusRequest(interval_ms=self._interval_ms)
        call = self._worker.WatchStatus(request)
        try:
            while True:
                async with asyncio.timeout(_SILENCE_S):
                    status = await call.read()
                if status is grpc.aio.EOF:
                    return
                if not (status.accepting or status.running or status.waiting):
                    # Our stream is all that still keeps it from stopping.
                    raise _UnusableError("it has drained")
                self._seen(status)
        finally:
            call.cancel()

    def _seen(self, status: worker_pb2.WatchStatusResponse) -> None:
        came, self._heard_at = self._load is None, time.monotonic()
        self.status, self._load = status, self._reports.take(status)
        if came:
            assert self._description is not None
            extra = {"address": self.address, "model": self._description.model}
            log.info(f"{self._tier} ready", extra=extra)
            self._told.clear()
            self._on_change()

    def _lost(self, reason: str) -> None:
        self.status = self._load = None
        first, kind = not self._told, _kind(reason)
        if kind not in self._told:
            self._told.add(kind)
            extra = {"address": self.address, "reason": reason}
            known = "lost" if first else "still lost"
            what = "not reachable yet" if self._description is None else known
            log.warning(f"{self._tier} {what}", extra=extra)
        if first:
            self._on_change()


def candidates(handles: Mapping[str, WorkerHandle]) -> list[Candidate]:
    """Those of some workers that were ever reached."""
    found = (handle.candidate for handle in handles.values())
    return [candidate for candidate in found if candidate is not None]


class _UnusableError(Exception):
    """The worker answers, but cannot be used; the message says why."""


def _kind(reason: str) -> str:
    """A reason without what differs from one attempt to the next: addresses, ports, times."""
    return re.sub(r"ipv[46]:\S+|\w*\d\w*", "", reason)


def _description(answer: worker_pb2.DescribeResponse) -> Description:
    return Description(
        incarnation=answer.incarnation,
        model=answer.model,
        tokenizer_fingerprint=answer.tokenizer_fingerprint,
        numerics_fingerprint=answer.numerics_fingerprint,
        vocab_size=answer.vocab_size,
        max_model_len=answer.max_model_len,
        methods=tuple(answer.methods),
        eos_token_ids=tuple(answer.eos_token_ids),
        pool=answer.pool,
    )
