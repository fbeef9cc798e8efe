"""Keeps one tier of the fleet in step with where its workers are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from gateway.backoff import Backoff
from gateway.discovery import kube_api
from gateway.discovery.dns import DnsResolver
from gateway.discovery.endpoint_slices import SERVICE_LABEL
from gateway.discovery.kubernetes import KubernetesResolver
from gateway.discovery.resolver import Resolver
from gateway.discovery.target import DnsTarget, KubernetesTarget, StaticTarget, Target

log = logging.getLogger(__name__)

Update = Callable[[frozenset[str]], None]


class Discovery:
    """Follows the targets of one tier while it is open.

    Args:
        targets: Where the workers are.
        update: Told all addresses of the tier, at once and whenever they change.
        dns_interval_s: Seconds between two look-ups of a name.
        kubeconfig: File that says where the Kubernetes API is; None for the pod's own cluster.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        update: Update,
        *,
        dns_interval_s: float = 5.0,
        kubeconfig: Path | None = None,
    ) -> None:
        self._targets = targets
        self._update = update
        self._dns_interval_s = dns_interval_s
        self._kubeconfig = kubeconfig
        # What `update` took, and from the start what needs no search.
        self._found: dict[Target, frozenset[str]] = {
            each: frozenset({each.address}) for each in targets if isinstance(each, StaticTarget)
        }
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for target in self._targets:
                if not isinstance(target, StaticTarget):
                    resolver = await self._resolver(target, stack)
                    task = asyncio.create_task(self._follow(target, resolver))
                    stack.push_async_callback(_cancel, task)
            self._publish({})
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _resolver(
        self, target: DnsTarget | KubernetesTarget, stack: AsyncExitStack
    ) -> Resolver:
        if isinstance(target, DnsTarget):
            return DnsResolver(target, self._dns_interval_s)
        configuration = await kube_api.load_configuration(self._kubeconfig)
        namespace = target.namespace or kube_api.own_namespace()
        selector = f"{SERVICE_LABEL}={target.service}"
        api = kube_api.EndpointSliceApi(namespace, selector, configuration)
        stack.push_async_callback(api.close)
        return KubernetesResolver(api, target.port, f"{namespace}/{target.service}")

    async def _follow(self, target: Target, resolver: Resolver) -> None:
        backoff = Backoff()

        def report(addresses: frozenset[str]) -> None:
            if addresses != self._found.get(target):
                self._publish({target: addresses})
            backoff.reset()

        while True:
            try:
                await resolver.follow(report)
            except Exception:
                # A defect of ours, or certificates that are being replaced, must not leave a
                # gateway blind for the rest of its life: what was not taken is reported again.
                log.exception("discovery failed", extra={"target": str(target)})
            await backoff.pause()

    def _publish(self, changed: dict[Target, frozenset[str]]) -> None:
        found = self._found | changed
        self._update(frozenset().union(*found.values()))
        self._found = found


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
