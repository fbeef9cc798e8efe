"""Asks a gateway about its fleet: here protobuf stops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from paceline import Client, Model
from paceline._channel import connect, resolve_address
from paceline._conversion import converted
from paceline._security import Security
from paceline.v1 import fleet_pb2, fleet_pb2_grpc, worker_pb2

from common.errors import Unavailable
from common.rpc.convert import LANE_NAMES, TIER_NAMES
from fleet.snapshot import Identity, Load, Measured, Pair, Pool, Snapshot, State, Tier, Worker

_UNARY_TIMEOUT_S = 30.0

_STATES = {
    fleet_pb2.WORKER_STATE_READY: State.READY,
    fleet_pb2.WORKER_STATE_DRAINING: State.DRAINING,
    fleet_pb2.WORKER_STATE_BROKEN: State.BROKEN,
    fleet_pb2.WORKER_STATE_LOST: State.LOST,
}


class FleetClient:
    """An operator's line to one gateway. Token and TLS come from the SDK's environment variables.

    Args:
        address: The gateway as host:port; None takes the environment's, else this machine's.

    Raises:
        ArgumentError: The address is none, or a token would travel in plaintext.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = resolve_address(address)
        self._security = Security(self.address, None, None, False)
        self._channel = connect(self.address, self._security)
        self._stub = fleet_pb2_grpc.FleetStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._channel.close()

    @contextmanager
    def watch(
        self, interval_s: float = 1.0, timeout_s: float | None = None
    ) -> Iterator[Iterator[Snapshot]]:
        """Follows the fleet inside a block: a snapshot at once, then one in every interval.

        Args:
            interval_s: Seconds between two.
            timeout_s: Seconds for all of it; None for as long as it is wanted.

        Raises:
            RpcError: The subclass says what failed.
        """
        request = fleet_pb2.WatchFleetRequest(interval_ms=round(1000 * interval_s))
        call = self._stub.WatchFleet(request, timeout=timeout_s, metadata=self._security.metadata())
        try:
            yield self._snapshots(call)
        finally:
            call.cancel()

    def look(self, times: int = 1, interval_s: float = 1.0) -> list[Snapshot]:
        """Returns the first snapshots of a watch; fewer where the gateway ends it.

        Raises:
            RpcError: The subclass says what failed.
            Unavailable: It ended before the first.
        """
        with self.watch(interval_s, times * interval_s + _UNARY_TIMEOUT_S) as snapshots:
            looks = [snapshot for _, snapshot in zip(range(times), snapshots, strict=False)]
        if not looks:
            raise Unavailable(f"the gateway at {self.address} ended before it told of its fleet")
        return looks

    def drain(self, address: str, grace_s: int) -> int:
        """Retires a worker.

        Args:
            address: As a snapshot names it.
            grace_s: What running requests get; 0 is the worker's own default.

        Returns:
            Sequences still in the worker.

        Raises:
            RpcError: The subclass says what failed.
        """
        request = fleet_pb2.DrainWorkerRequest(address=address, grace_s=grace_s)
        with converted(self.address):
            answer = self._stub.DrainWorker(
                request, timeout=_UNARY_TIMEOUT_S, metadata=self._security.metadata()
            )
        return int(answer.remaining)

    def models(self) -> list[Model]:
        """Lists the models that are served.

        Raises:
            RpcError: The subclass says what failed.
        """
        with Client(self.address) as client:
            return client.models()

    def _snapshots(self, call: Any) -> Iterator[Snapshot]:
        with converted(self.address):
            for message in call:
                yield snapshot_from_proto(message, time.monotonic())


def snapshot_from_proto(message: fleet_pb2.WatchFleetResponse, at_s: float) -> Snapshot:
    """Reads one message of `WatchFleet`.

    Args:
        message: The message.
        at_s: When it came.
    """
    return Snapshot(
        workers=tuple(_worker(each) for each in message.workers if each.tier in TIER_NAMES),
        pairs=tuple(_pair(pair) for pair in message.pairs),
        pools=tuple(_pool(each) for each in message.pools if each.tier in TIER_NAMES),
        at_s=at_s,
    )


def _worker(worker: fleet_pb2.FleetWorker) -> Worker:
    return Worker(
        address=worker.address,
        tier=Tier(TIER_NAMES[worker.tier]),
        pool=worker.description.pool,
        state=_STATES.get(worker.state, State.UNKNOWN),
        in_flight=worker.in_flight,
        identity=_identity(worker.description) if worker.HasField("description") else None,
        load=_load(worker.status) if worker.HasField("status") else None,
    )


def _identity(description: worker_pb2.DescribeResponse) -> Identity:
    return Identity(
        incarnation=description.incarnation,
        model=description.model,
        tokenizer=description.tokenizer_fingerprint,
        numerics=description.numerics_fingerprint,
        vocab_size=description.vocab_size,
        methods=tuple(description.methods),
        version=description.version,
        dtype=description.dtype,
        device=description.device,
        accelerator=description.accelerator,
    )


def _load(status: worker_pb2.WatchStatusResponse) -> Load:
    return Load(
        running=status.running,
        waiting=status.waiting,
        kv_blocks_total=status.kv_blocks_total,
        kv_blocks_free=status.kv_blocks_free,
        step_ms=status.step_ms,
        plain_step_ms=status.plain_step_ms,
        steps=status.steps,
        tokens=status.tokens,
        stale_drafts=status.stale_drafts,
        stale_epochs=status.stale_epochs,
        queue_wait_ms=status.queue_wait_ms,
        batch_occupancy=status.batch_occupancy,
        draft_wait_ms=status.draft_wait_ms,
    )


def _pool(pool: fleet_pb2.FleetPool) -> Pool:
    tier = Tier(TIER_NAMES[pool.tier])
    return Pool(tier=tier, name=pool.pool, ready=pool.ready, desired=pool.desired)


def _pair(pair: fleet_pb2.FleetPair) -> Pair:
    return Pair(
        verifier=pair.verifier,
        drafter=pair.drafter,
        misfit=pair.misfit,
        offered=pair.offered,
        measured=_measured(pair.measured) if pair.HasField("measured") else None,
    )


def _measured(measured: worker_pb2.PairStatus) -> Measured:
    return Measured(
        alive=measured.alive,
        sessions=measured.sessions,
        rounds=measured.rounds,
        drafted_tokens=measured.drafted_tokens,
        accepted_tokens=measured.accepted_tokens,
        acceptance=measured.acceptance,
        round_trip_ms=measured.round_trip_ms,
        draft_ms=measured.draft_ms,
        gain=measured.gain,
        lane=LANE_NAMES.get(measured.lane, ""),
    )
