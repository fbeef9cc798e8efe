"""What a resolver reported, to wait for; and EndpointSlices to report of."""

from __future__ import annotations

import asyncio
from typing import Any


class Reports:
    """Takes reports and wakes whoever waits for one."""

    def __init__(self) -> None:
        self.seen: list[frozenset[str]] = []
        self._came = asyncio.Event()

    def __call__(self, addresses: frozenset[str]) -> None:
        self.seen.append(addresses)
        self._came.set()

    async def until(self, *addresses: str) -> None:
        """Waits until the last report is these addresses."""
        async with asyncio.timeout(20):
            while not self.seen or self.seen[-1] != frozenset(addresses):
                self._came.clear()
                await self._came.wait()


def endpoint(host: str, **conditions: Any) -> dict[str, Any]:
    return {"addresses": [host], "conditions": {"ready": True} | conditions}


def endpoint_slice(
    name: str, *endpoints: dict[str, Any] | str, service: str = "verifier", **fields: Any
) -> dict[str, Any]:
    """An EndpointSlice as the API has it; a text stands for a ready endpoint at that address."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": 7071}, {"name": "health", "port": 7079}],
        "endpoints": [endpoint(each) if isinstance(each, str) else each for each in endpoints],
    } | fields
