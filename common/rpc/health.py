"""Health of one server as `grpc.health.v1` tells it."""

from __future__ import annotations

from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

SERVICE: str = health.SERVICE_NAME


class Health:
    """SERVING or not, for the server as a whole ("") and for each of its services.

    Args:
        serving: The state at the start. A service that depends on others begins with False and
            calls `set_serving` when they are there.
    """

    def __init__(self, *, serving: bool = True) -> None:
        self._servicer = health.aio.HealthServicer()
        self._names: tuple[str, ...] = ("",)
        self._serving = serving

    async def attach(self, server: grpc.aio.Server, services: Sequence[str]) -> None:
        """Adds the health service to a server that offers `services`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        self._names = ("", *services)
        await self.set_serving(self._serving)

    async def set_serving(self, serving: bool) -> None:
        """Changes the state; without effect once the server drains."""
        self._serving = serving
        status = health_pb2.HealthCheckResponse.ServingStatus
        for name in self._names:
            await self._servicer.set(name, status.SERVING if serving else status.NOT_SERVING)

    async def drain(self) -> None:
        """Says NOT_SERVING for good."""
        await self._servicer.enter_graceful_shutdown()
