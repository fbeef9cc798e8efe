"""The EndpointSlices of one Service and the addresses they add up to: no wire, no clock.

A Service has several slices, and an endpoint may move from one to another; what is reported is
the union. The objects are the API's JSON, as documented for `discovery.k8s.io/v1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from common.address import host_port

SERVICE_LABEL = "kubernetes.io/service-name"
"""Label by which a slice belongs to a Service."""

_FAMILIES = ("IPv4", "IPv6")


class SliceTable:
    """What the API server last said of each slice.

    Args:
        port: Name of a port, or the number that the pods listen on.
    """

    def __init__(self, port: str) -> None:
        self._port = port
        self._slices: dict[str, Mapping[str, Any]] = {}

    @property
    def addresses(self) -> frozenset[str]:
        """host:port of every ready endpoint.

        A pod with addresses of both families is one worker, so only one family counts: IPv4
        where it is there.
        """
        for family in _FAMILIES:
            slices = (s for s in self._slices.values() if s.get("addressType") == family)
            if found := frozenset(a for each in slices for a in _addresses(each, self._port)):
                return found
        return frozenset()

    def replace(self, slices: Iterable[Mapping[str, Any]]) -> None:
        """Takes a whole list in place of all that is known."""
        self._slices = {each["metadata"]["name"]: each for each in slices}

    def apply(self, kind: str, changed: Mapping[str, Any]) -> None:
        """Takes one change: "ADDED", "MODIFIED" or "DELETED"."""
        name = changed["metadata"]["name"]
        if kind == "DELETED":
            self._slices.pop(name, None)
        else:
            self._slices[name] = changed


def _addresses(each: Mapping[str, Any], port: str) -> Iterator[str]:
    number = _number(each, port)
    if number is None:
        return
    for endpoint in each.get("endpoints") or ():
        if not _is_ready(endpoint.get("conditions") or {}):
            continue
        # All addresses of an endpoint are the same pod; clients are to use the first.
        yield host_port(endpoint["addresses"][0], number)


def _number(each: Mapping[str, Any], port: str) -> int | None:
    if port.isdecimal():
        return int(port)
    ports = each.get("ports") or ()
    return next((p.get("port") for p in ports if p.get("name") == port), None)


def _is_ready(conditions: Mapping[str, Any]) -> bool:
    """An unknown state is to be read as ready; one that is going gets nothing new."""
    return conditions.get("ready") is not False and not conditions.get("terminating")
