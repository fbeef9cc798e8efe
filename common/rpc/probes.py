"""Health for those who cannot speak TLS or hold a token: a plaintext server on a port of its own.

A kubelet's probe is such a one. It may learn whether the process lives and whether it takes
requests, and nothing else is served here.
"""

from __future__ import annotations

from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import NotFound
from common.rpc.errors import ErrorInterceptor
from common.rpc.health import Health

LIVENESS, READINESS = "liveness", "readiness"
"""Names to ask for; the empty one means readiness, too."""

_SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


class Probes(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers probes.

    Args:
        health: What the service itself says of its health.
    """

    def __init__(self, health: Health) -> None:
        self._health = health

    async def Check(self, request: Any, context: Any) -> Any:
        """Says the state."""
        if request.service == LIVENESS:
            return _SERVING  # this answer is the proof
        if request.service not in ("", READINESS):
            raise NotFound(f"no service {request.service} here; ask for liveness or readiness")
        return await self._health.Check(health_pb2.HealthCheckRequest(), context)

    # Watch stays unimplemented: a stream would outlive the drain, and no probe needs it.


def probe_server(health: Health) -> grpc.aio.Server:
    """Returns a server that answers probes; the caller binds and starts it."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    health_pb2_grpc.add_HealthServicer_to_server(Probes(health), server)
    return server
