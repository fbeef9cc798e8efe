"""The operators' service `Fleet`: here protobuf stops.

It is for operators alone: callers with that scope and, on a gateway that asks nobody who he is,
whoever calls from the gateway's own machine. Others learn nothing about the workers.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import grpc.aio
from paceline.v1 import fleet_pb2, fleet_pb2_grpc

from common.errors import PermissionDenied
from common.rpc.convert import TIERS
from common.rpc.watches import Watches, interval_s
from gateway.auth.authenticator import Authenticator
from gateway.auth.caller import ANYONE
from gateway.autoscale import Pool
from gateway.fleet import Fleet
from gateway.snapshot import PairView, Snapshot, State, WorkerView

SERVICE = fleet_pb2.DESCRIPTOR.services_by_name["Fleet"].full_name

Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

_STATES = {
    State.READY: fleet_pb2.WORKER_STATE_READY,
    State.DRAINING: fleet_pb2.WORKER_STATE_DRAINING,
    State.BROKEN: fleet_pb2.WORKER_STATE_BROKEN,
    State.LOST: fleet_pb2.WORKER_STATE_LOST,
}
# Not all of 127/8: a mesh's sidecar calls from another address of it for whoever called the pod.
_OWN = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))
_PEER = re.compile(r"ipv[46]:\[?(?P<host>[^\]]*?)\]?:\d+")


class FleetService(fleet_pb2_grpc.FleetServicer):
    """Tells operators about the workers, and retires them.

    Args:
        fleet: The workers.
        authenticator: Tells callers apart.
    """

    def __init__(self, fleet: Fleet, authenticator: Authenticator) -> None:
        self._fleet = fleet
        self._authenticator = authenticator
        self._watches = Watches()

    def register(self, server: grpc.aio.Server) -> list[str]:
        """Adds the service to a server and returns its name."""
        fleet_pb2_grpc.add_FleetServicer_to_server(self, server)
        return [SERVICE]

    async def end(self) -> None:
        """Ends the watches; see `Watches.end`."""
        self._watches.end()

    async def WatchFleet(
        self, request: fleet_pb2.WatchFleetRequest, context: Context
    ) -> AsyncIterator[fleet_pb2.WatchFleetResponse]:
        """Streams the state of the fleet until the caller goes away."""
        await self._admit(context)  # before anything is said of the request
        every_s = interval_s(request.interval_ms)
        while self._watches.on:
            await self._admit(context)  # each time: a token may have been withdrawn
            yield snapshot_to_proto(await self._fleet.snapshot())
            await self._watches.pause(every_s)

    async def DrainWorker(
        self, request: fleet_pb2.DrainWorkerRequest, context: Context
    ) -> fleet_pb2.DrainWorkerResponse:
        """Retires a worker."""
        tenant = await self._admit(context)
        remaining = await self._fleet.drain(request.address, request.grace_s)
        extra = {"address": request.address, "grace_s": request.grace_s, "tenant": tenant}
        log.info("worker drained by an operator", extra=extra)
        return fleet_pb2.DrainWorkerResponse(remaining=remaining)

    async def _admit(self, context: Context) -> str:
        """Returns the tenant of an operator.

        Raises:
            Unauthenticated: Nobody that is known here.
            PermissionDenied: Somebody who is no operator.
        """
        caller = await self._authenticator.identify(context.invocation_metadata() or ())
        if caller is ANYONE and not is_local(context.peer()):
            raise PermissionDenied(
                "this gateway asks nobody for a token: only calls from its own machine may see "
                "or change the fleet"
            )
        if caller is not ANYONE and not caller.operator:
            raise PermissionDenied("these credentials are not an operator's")
        return caller.tenant


def is_local(peer: str) -> bool:
    """Whether a caller, as gRPC names it, is on this machine."""
    if peer.startswith("unix:"):
        return True
    found = _PEER.fullmatch(unquote(peer))
    try:
        address = ipaddress.ip_address(found["host"] if found else "")
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address in _OWN


def snapshot_to_proto(snapshot: Snapshot) -> fleet_pb2.WatchFleetResponse:
    """Words the state of the fleet."""
    return fleet_pb2.WatchFleetResponse(
        workers=[_worker(worker) for worker in snapshot.workers],
        pairs=[_pair(pair) for pair in snapshot.pairs],
        pools=[_pool(pool) for pool in snapshot.pools],
    )


def _worker(worker: WorkerView) -> fleet_pb2.FleetWorker:
    return fleet_pb2.FleetWorker(
        address=worker.address,
        tier=TIERS[worker.tier],
        state=_STATES[worker.state],
        description=worker.description,
        status=worker.status,
        in_flight=worker.in_flight,
    )


def _pair(pair: PairView) -> fleet_pb2.FleetPair:
    return fleet_pb2.FleetPair(
        verifier=pair.verifier,
        drafter=pair.drafter,
        misfit=pair.misfit,
        measured=pair.measured,
        offered=pair.offered,
    )


def _pool(pool: Pool) -> fleet_pb2.FleetPool:
    return fleet_pb2.FleetPool(
        tier=TIERS[pool.tier], pool=pool.pool, ready=pool.ready, desired=pool.desired
    )
