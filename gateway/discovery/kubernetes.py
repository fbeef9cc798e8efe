"""Workers behind a Kubernetes Service, followed by listing and watching its EndpointSlices.

A list gives the state and its version; a watch from there streams changes, each with a newer
version, for as long as the server likes. After an orderly end or a lost connection the watch goes
on from the last version seen; only when that is too old (410 Gone) everything is listed anew.
While the API server is away, or refuses, the last known addresses stay.
"""

from __future__ import annotations

import logging
import random
from contextlib import aclosing

from gateway.backoff import Backoff
from gateway.discovery.endpoint_slices import SliceTable
from gateway.discovery.kube_api import (
    CredentialsError,
    EndpointSliceApi,
    ForbiddenError,
    GoneError,
    KubeError,
)
from gateway.discovery.resolver import Report

log = logging.getLogger(__name__)

# Seconds of one watch: a connection that dies without a word is noticed when it should have ended.
# Random, so that the gateways of a fleet do not begin anew together.
_WATCH_S = (60, 90)


class KubernetesResolver:
    """Follows the EndpointSlices of one Service.

    Args:
        api: Lists and watches them.
        port: Name of a port, or the number that the pods listen on.
        what: Namespace and Service, for logs.
        backoff: Pauses between attempts.
    """

    def __init__(
        self, api: EndpointSliceApi, port: str, what: str, backoff: Backoff | None = None
    ) -> None:
        self._api = api
        self._what = what
        self._table = SliceTable(port)
        self._backoff = backoff or Backoff()
        self._version = ""
        self._found: frozenset[str] | None = None
        self._told: frozenset[str] | None = None
        self._failing = False

    async def follow(self, report: Report) -> None:
        """See `Resolver.follow`."""
        self._tell(report)  # what was refused the last time
        while True:
            try:
                if not self._version:
                    await self._list(report)
                if await self._watch(report):
                    continue
            except GoneError:
                log.info("watch is too old, listing again", extra={"target": self._what})
                self._version = ""
            except KubeError as error:
                self._failed(error)
            # A watch that brings nothing may be a proxy that ends every one at once.
            await self._backoff.pause()

    async def _list(self, report: Report) -> None:
        slices, self._version = await self._api.list()
        self._table.replace(slices)
        self._answered()
        self._found = self._table.addresses
        self._tell(report)

    async def _watch(self, report: Report) -> bool:
        """Takes the changes of one watch; returns whether there were any before it ended."""
        heard = False
        events = self._api.watch(self._version, random.randint(*_WATCH_S))
        async with aclosing(events):
            async for kind, changed in events:
                heard = True
                self._answered()
                self._backoff.reset()
                self._version = changed["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self._table.apply(kind, changed)
                    self._found = self._table.addresses
                    self._tell(report)
        return heard

    def _tell(self, report: Report) -> None:
        if self._found is not None and self._found != self._told:
            report(self._found)
            self._told = self._found

    def _answered(self) -> None:
        if self._failing:
            log.info("API server is back", extra={"target": self._what})
        self._failing = False

    def _failed(self, error: KubeError) -> None:
        if self._failing:
            return
        self._failing = True
        extra = {"target": self._what, "reason": str(error)}
        if isinstance(error, ForbiddenError):
            log.error(
                "not allowed to list and watch endpointslices: the gateway's service account "
                "needs a Role with the verbs list and watch on endpointslices of "
                "discovery.k8s.io in that namespace",
                extra=extra,
            )
        elif isinstance(error, CredentialsError):
            log.error(
                "the API server does not know the gateway's credentials: the token of its service "
                "account, or of the kubeconfig's user, has run out or is another cluster's",
                extra=extra,
            )
        else:
            log.warning("API server is away", extra=extra)
