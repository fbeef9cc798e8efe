"""The targets of a tier add up, whatever their kind."""

import asyncio
import logging
from functools import partial

import pytest

from common.errors import StartupError
from gateway.backoff import Backoff
from gateway.discovery import discovery
from gateway.discovery.discovery import Discovery
from gateway.discovery.target import parse_targets
from tests.fakes import kubeapi
from tests.unit.gateway.discovery.reports import Reports, endpoint_slice


async def test_static_addresses_are_there_at_once() -> None:
    reports = Reports()
    async with Discovery(parse_targets("verifiers", ["a:1", "b:1"]), reports):
        assert reports.seen == [{"a:1", "b:1"}]
    async with Discovery((), reports):
        assert reports.seen[-1] == frozenset()


async def test_all_kinds_together(tmp_path) -> None:
    file = tmp_path / "kubeconfig"
    entries = ["a:1", "dns:127.0.0.1:2", "kubernetes:ns/verifier:grpc"]
    async with kubeapi.serving() as cluster:
        cluster.apply(endpoint_slice("v-1", "10.0.0.1"), namespace="ns")
        file.write_text(kubeapi.kubeconfig(cluster.url))
        reports, targets = Reports(), parse_targets("verifiers", entries)
        async with Discovery(targets, reports, dns_interval_s=0.1, kubeconfig=file):
            await reports.until("a:1", "127.0.0.1:2", "10.0.0.1:7071")
            cluster.delete("v-1", "ns")
            await reports.until("a:1", "127.0.0.1:2")


async def test_outside_a_pod_it_says_what_it_needs(monkeypatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    targets = parse_targets("verifiers", ["dns:127.0.0.1:2", "kubernetes:verifier:grpc"])
    with pytest.raises(StartupError, match="kubeconfig: needed outside a pod"):
        await Discovery(targets, Reports()).__aenter__()


async def test_what_was_not_taken_is_reported_again(monkeypatch) -> None:
    async def follow(_, report) -> None:
        report(frozenset({"b:1"}))
        await asyncio.Event().wait()

    def refuse_once(addresses) -> None:
        if "b:1" in addresses and not refused:
            refused.append(addresses)
            raise StartupError("between two certificates")
        reports(addresses)

    monkeypatch.setattr(discovery.DnsResolver, "follow", follow)
    monkeypatch.setattr(discovery, "Backoff", partial(Backoff, 0.01))
    reports, refused, entries = Reports(), [], ["a:1", "dns:h:1"]
    async with Discovery(parse_targets("verifiers", entries), refuse_once):
        await reports.until("a:1", "b:1")
    assert reports.seen == [{"a:1"}, {"a:1", "b:1"}]
    assert refused


async def test_a_defect_is_told_and_survived(monkeypatch, caplog) -> None:
    class Broken:
        def __init__(self, *_) -> None:
            self.tries = 0

        async def follow(self, report) -> None:
            self.tries += 1
            if self.tries == 1:
                raise RuntimeError("a defect")
            report(frozenset({"a:1"}))
            await asyncio.Event().wait()

    monkeypatch.setattr(discovery, "DnsResolver", Broken)
    reports = Reports()
    with caplog.at_level(logging.ERROR):
        async with Discovery(parse_targets("verifiers", ["dns:h:1"]), reports):
            await reports.until("a:1")
    assert [record.message for record in caplog.records] == ["discovery failed"]
