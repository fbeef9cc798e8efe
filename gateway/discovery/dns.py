"""Workers behind a DNS name, one at each of its addresses: a headless Service, a compose service.

DNS tells of changes only when asked, so the name is looked up again and again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from common.address import host_port
from gateway.discovery.resolver import Report
from gateway.discovery.target import DnsTarget

log = logging.getLogger(__name__)

Lookup = Callable[[str, int], Awaitable[frozenset[str]]]

# The answer that there is no such name or address: a headless Service without ready pods. Any
# other error means that nobody answered.
_ABSENT = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


async def lookup(host: str, port: int) -> frozenset[str]:
    """Returns every address of a name, with the port.

    Raises:
        OSError: The name server does not answer.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _ABSENT:
            return frozenset()
        raise
    families = {family for family, *_ in found}
    # A pod of two families is one worker: the older one is taken where both are there.
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    hosts = {str(each[4][0]) for each in found if each[0] == family}
    return frozenset(host_port(host, port) for host in hosts)


class DnsResolver:
    """Looks a name up at an interval.

    Args:
        target: The name.
        interval_s: Seconds between two look-ups.
        lookup: Asks the name server.
    """

    def __init__(self, target: DnsTarget, interval_s: float, lookup: Lookup = lookup) -> None:
        self._target = target
        self._interval_s = interval_s
        self._lookup = lookup
        self._away = False

    async def follow(self, report: Report) -> None:
        """See `Resolver.follow`."""
        while True:
            try:
                report(await self._lookup(self._target.host, self._target.port))
                self._away = False
            except OSError as error:
                self._failed(error)
            await asyncio.sleep(self._interval_s)

    def _failed(self, error: OSError) -> None:
        if not self._away:
            extra = {"host": self._target.host, "reason": str(error)}
            log.warning("name server does not answer", extra=extra)
        self._away = True
