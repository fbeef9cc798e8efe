"""Health of one server as `grpc.health.v1` tells it.

Not grpcio-health-checking's own servicer: its watchers outlive the drain, which would then last
its whole grace period, and the end of one makes the others deaf.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.errors import NotFound, ResourceExhausted

SERVICE: str = health.SERVICE_NAME

_STATUS = health_pb2.HealthCheckResponse.ServingStatus

_MOST_WATCHES = 256
"""Of one server: they need no token, and last."""


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """SERVING or not, for the server as a whole ("") and for each of its services.

    Args:
        serving: The state at the start. A service that depends on others begins with False and
            calls `set_serving` when they are there.
    """

    def __init__(self, *, serving: bool = True) -> None:
        self._names: tuple[str, ...] = ("",)
        self._serving = serving
        self._draining = False
        self._watches = 0
        self._changed = asyncio.Event()

    def attach(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        """Adds the health service to a server that offers `services`."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)
        self._names = ("", *services)

    def set_serving(self, serving: bool) -> None:
        """Changes the state; without effect once the server drains."""
        if not self._draining:
            self._serving = serving
            self._changed.set()
            self._changed = asyncio.Event()

    def drain(self) -> None:
        """Says NOT_SERVING for good, and ends the watches with that."""
        self.set_serving(False)
        self._draining = True

    async def Check(self, request: Any, context: Any) -> Any:
        """Says the state."""
        if request.service not in self._names:
            raise NotFound(f"no service {request.service} here")
        return self._response(request.service)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Streams the state, at once and at each change, until the server drains.

        Raises:
            ResourceExhausted: To as many as it may already.
        """
        if self._watches >= _MOST_WATCHES:
            raise ResourceExhausted(f"{self._watches} watch this server's health; use Check")
        self._watches += 1
        try:
            last = None
            while True:
                # Looked at together: the drain may begin while a response is on its way.
                changed, over = self._changed, self._draining
                response = self._response(request.service)
                if response != last:
                    yield response
                    last = response
                if over:
                    return
                await changed.wait()
        finally:
            self._watches -= 1

    def _response(self, service: str) -> Any:
        status = _STATUS.SERVING if self._serving else _STATUS.NOT_SERVING
        known = service in self._names
        return health_pb2.HealthCheckResponse(status=status if known else _STATUS.SERVICE_UNKNOWN)
