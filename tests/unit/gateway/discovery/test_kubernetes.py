"""A Service's endpoints over a real HTTP connection to a fake API server: changes, gaps, faults."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.errors import StartupError
from gateway.backoff import Backoff
from gateway.discovery import kube_api
from gateway.discovery.kubernetes import KubernetesResolver
from tests.fakes import kubeapi
from tests.fakes.kubeapi import KubeApi
from tests.unit.gateway.discovery.reports import Reports, endpoint, endpoint_slice

REFUSED = (
    "not allowed to list and watch endpointslices: the gateway's service account needs a Role with "
    "the verbs list and watch on endpointslices of discovery.k8s.io in that namespace"
)
UNKNOWN = (
    "the API server does not know the gateway's credentials: the token of its service account, or "
    "of the kubeconfig's user, has run out or is another cluster's"
)
A, B, C = "10.0.0.1:7071", "10.0.0.2:7071", "10.0.0.3:7071"


@pytest.fixture
async def cluster() -> AsyncIterator[KubeApi]:
    async with kubeapi.serving() as api:
        api.apply(endpoint_slice("v-1", "10.0.0.1"))
        api.apply(endpoint_slice("other-1", "10.9.9.9", service="other"))
        api.apply(endpoint_slice("v-1", "10.8.8.8"), namespace="elsewhere")
        yield api


@asynccontextmanager
async def resolving(
    cluster: KubeApi, tmp_path: Path, *, token: str = "secret"
) -> AsyncIterator[KubernetesResolver]:
    file = tmp_path / "kubeconfig"
    file.write_text(kubeapi.kubeconfig(cluster.url, token))
    configuration = await kube_api.load_configuration(file)
    selector = "kubernetes.io/service-name=verifier"
    api = kube_api.EndpointSliceApi("default", selector, configuration)
    backoff = Backoff(first_s=0.01, most_s=0.05)
    try:
        yield KubernetesResolver(api, "grpc", "default/verifier", backoff)
    finally:
        await api.close()


@asynccontextmanager
async def following(
    cluster: KubeApi, tmp_path: Path, *, token: str = "secret"
) -> AsyncIterator[Reports]:
    async with resolving(cluster, tmp_path, token=token) as resolver:
        reports = Reports()
        task = asyncio.create_task(resolver.follow(reports))
        try:
            yield reports
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_only_this_services_endpoints_in_this_namespace(cluster, tmp_path) -> None:
    async with following(cluster, tmp_path) as reports:
        await reports.until(A)
        await cluster.until("watch", 1)
    listed, watched = cluster.requests
    assert listed == ("list", {"labelSelector": "kubernetes.io/service-name=verifier"})
    assert watched[1]["allowWatchBookmarks"] == "true"
    assert int(watched[1]["resourceVersion"]) > 100


async def test_endpoints_come_and_go(cluster, tmp_path) -> None:
    async with following(cluster, tmp_path) as reports:
        await reports.until(A)
        cluster.apply(endpoint_slice("v-1", "10.0.0.1", "10.0.0.2"))
        await reports.until(A, B)
        cluster.apply(endpoint_slice("v-2", "10.0.0.3"))
        await reports.until(A, B, C)
        cluster.apply(endpoint_slice("v-1", endpoint("10.0.0.1", ready=False), "10.0.0.2"))
        await reports.until(B, C)
        cluster.delete("v-2")
        await reports.until(B)
        cluster.delete("v-1")
        await reports.until()
    assert [verb for verb, _ in cluster.requests] == ["list", "watch"]


async def test_what_changes_nothing_is_not_reported(cluster, tmp_path) -> None:
    async with following(cluster, tmp_path) as reports:
        await reports.until(A)
        cluster.apply(endpoint_slice("v-1", "10.0.0.1", endpoint("10.0.0.2", ready=False)))
        cluster.apply(endpoint_slice("v-2", "10.0.0.1"))
        cluster.apply(endpoint_slice("v-2", "10.0.0.1", "10.0.0.3"))
        await reports.until(A, C)
    assert reports.seen == [{A}, {A, C}]


async def test_what_was_refused_is_reported_again_though_nothing_happens(cluster, tmp_path) -> None:
    def refuse(addresses) -> None:
        raise StartupError("between two certificates")

    async with resolving(cluster, tmp_path) as resolver:
        for _ in range(2):
            with pytest.raises(StartupError):
                await resolver.follow(refuse)
        reports = Reports()
        task = asyncio.create_task(resolver.follow(reports))
        await reports.until(A)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [verb for verb, _ in cluster.requests].count("list") == 1


async def test_after_an_orderly_end_the_watch_goes_on_without_a_list(cluster, tmp_path) -> None:
    async with following(cluster, tmp_path) as reports:
        await cluster.until("watch", 1)
        cluster.end_watches()
        cluster.apply(endpoint_slice("v-2", "10.0.0.2"))  # in the gap
        await reports.until(A, B)
    assert [verb for verb, _ in cluster.requests].count("list") == 1


async def test_a_dropped_connection_loses_nothing(cluster, tmp_path) -> None:
    async with following(cluster, tmp_path) as reports:
        await cluster.until("watch", 1)
        cluster.drop_watches()
        cluster.delete("v-1")
        cluster.apply(endpoint_slice("v-2", "10.0.0.2"))
        await reports.until(B)
    assert [verb for verb, _ in cluster.requests].count("list") == 1


async def test_a_bookmark_moves_the_version_on(cluster, tmp_path) -> None:
    async with following(cluster, tmp_path) as reports:
        await cluster.until("watch", 1)
        cluster.bookmark()
        cluster.compact()
        cluster.end_watches()
        await cluster.until("watch", 2)
        cluster.apply(endpoint_slice("v-2", "10.0.0.2"))
        await reports.until(A, B)
    assert [verb for verb, _ in cluster.requests].count("list") == 1


@pytest.mark.parametrize("by_status", [False, True])
async def test_gone_lists_anew(cluster, tmp_path, by_status) -> None:
    cluster.gone_by_status = by_status
    async with following(cluster, tmp_path) as reports:
        await cluster.until("watch", 1)
        cluster.drop_watches()
        cluster.delete("v-1")
        cluster.apply(endpoint_slice("v-2", "10.0.0.2"))
        cluster.compact()  # the deletion will never be seen as an event
        await reports.until(B)
        await cluster.until("list", 2)
        await cluster.until("watch", 3)
        cluster.apply(endpoint_slice("v-3", "10.0.0.3"))
        await reports.until(B, C)


async def test_gone_in_the_middle_of_a_watch(cluster, tmp_path) -> None:
    async with following(cluster, tmp_path) as reports:
        await cluster.until("watch", 1)
        cluster.expire_watches()
        cluster.apply(endpoint_slice("v-2", "10.0.0.2"))
        await reports.until(A, B)
        await cluster.until("list", 2)


async def test_a_server_that_fails_leaves_the_last_addresses(cluster, tmp_path, caplog) -> None:
    with caplog.at_level(logging.INFO, "gateway.discovery"):
        async with following(cluster, tmp_path) as reports:
            await cluster.until("watch", 1)
            cluster.failure = 500
            cluster.drop_watches()
            await cluster.until("watch", 4)
            assert reports.seen == [{A}]
            cluster.failure = None
            cluster.apply(endpoint_slice("v-2", "10.0.0.2"))
            await reports.until(A, B)
    events = [record.message for record in caplog.records]
    assert events == ["API server is away", "API server is back"]


async def test_a_server_that_is_not_there_is_tried_until_it_is(tmp_path, caplog) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        port = held.getsockname()[1]
        away = KubeApi()
        away.url = f"http://127.0.0.1:{port}"
        with caplog.at_level(logging.INFO, "gateway.discovery"):
            async with following(away, tmp_path) as reports:
                await logged(caplog, "API server is away")
                held.close()
                async with kubeapi.serving(port) as cluster:
                    cluster.apply(endpoint_slice("v-1", "10.0.0.1"))
                    await reports.until(A)
    # Between the first answer and the last object there may be one report of nothing.
    assert reports.seen[-1] == {A}


async def test_a_connection_that_died_without_a_word_is_given_up(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kube_api, "_WATCH_MARGIN_S", 0.05)
    file = tmp_path / "kubeconfig"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        file.write_text(kubeapi.kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        configuration = await kube_api.load_configuration(file)
        api = kube_api.EndpointSliceApi("default", "", configuration)
        with pytest.raises(kube_api.KubeError):
            await anext(api.watch("1", watch_s=0))
        await api.close()


async def logged(caplog: pytest.LogCaptureFixture, message: str) -> None:
    async with asyncio.timeout(20):
        while message not in caplog.messages:  # noqa: ASYNC110 - the log is another task's
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_missing_role_is_said_clearly(cluster, tmp_path, caplog, verb) -> None:
    cluster.forbidden = {verb}
    with caplog.at_level(logging.INFO, "gateway.discovery"):
        async with following(cluster, tmp_path) as reports:
            await cluster.until(verb, 3)
            cluster.forbidden = set()
            cluster.apply(endpoint_slice("v-2", "10.0.0.2"))
            await reports.until(A, B)
    first = caplog.records[0]
    assert first.levelname == "ERROR"
    assert first.message == REFUSED
    assert f'cannot {verb} resource "endpointslices"' in first.reason
    assert [record.message for record in caplog.records[1:]] == ["API server is back"]


async def test_an_unknown_token_is_refused_clearly(cluster, tmp_path, caplog) -> None:
    cluster.token = "another"
    with caplog.at_level(logging.INFO, "gateway.discovery"):
        async with following(cluster, tmp_path) as reports:
            await logged(caplog, UNKNOWN)
            cluster.token = "secret"
            await reports.until(A)
    assert "401 Unauthorized" in caplog.records[0].reason


async def test_slices_larger_than_any_buffer(cluster, tmp_path) -> None:
    many = [endpoint(f"10.1.{i // 250}.{i % 250}", nodeName="n" * 400) for i in range(3000)]
    async with following(cluster, tmp_path) as reports:
        await cluster.until("watch", 1)
        cluster.apply(endpoint_slice("v-1", *many))
        await reports.until(*(f"{each['addresses'][0]}:7071" for each in many))
