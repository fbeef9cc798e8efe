"""Scaling a pool through the API server: what is changed, what is refused, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StartupError,
    Unavailable,
)
from fleet import deployments
from fleet.deployments import Deployments, PoolName, Scaled
from tests.fakes import kubeapi
from tests.fakes.kube_resources import DEPLOYMENTS, SCALERS, Object
from tests.fakes.kubeapi import KubeApi

T4 = PoolName.parse("drafter/t4")


def deployment(release: str, tier: str, pool: str, replicas: int) -> Object:
    labels = {
        "app.kubernetes.io/name": "paceline",
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/component": tier,
        "paceline/pool": pool,
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}}
    return {"metadata": {"name": f"{release}-{tier}-{pool}", "labels": labels}, "spec": spec}


def scaler(name: str, target: str, owner: str | None = None) -> Object:
    metadata: Object = {"name": name}
    if owner:
        metadata["ownerReferences"] = [{"kind": "ScaledObject", "name": owner}]
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
    return {
        "metadata": metadata,
        "spec": {"scaleTargetRef": reference, "minReplicas": 2, "maxReplicas": 9},
    }


@pytest.fixture
async def cluster() -> AsyncIterator[KubeApi]:
    async with kubeapi.serving() as api:
        for tier, pool in (("drafter", "t4"), ("drafter", "a10"), ("verifier", "h100")):
            api.apply(deployment("paceline", tier, pool, 3), resource=DEPLOYMENTS)
        yield api


@pytest.fixture
def kubeconfig(cluster: KubeApi, tmp_path: Path) -> Path:
    (tmp_path / "config").write_text(kubeapi.kubeconfig(cluster.url))
    return tmp_path / "config"


async def scale(kubeconfig: Path, pool: PoolName, replicas: int, **options: Any) -> Scaled:
    namespace = options.pop("namespace", None)

    def ask() -> Scaled:
        with Deployments(kubeconfig, namespace=namespace) as found:
            return found.scale(pool, replicas, **options)

    return await asyncio.to_thread(ask)


def replicas(cluster: KubeApi, name: str) -> int:
    found = cluster.get(DEPLOYMENTS, name)
    assert found is not None
    return int(found["spec"]["replicas"])


async def test_one_pool_is_scaled_and_no_other(cluster: KubeApi, kubeconfig: Path) -> None:
    done = await scale(kubeconfig, T4, 7)
    assert done == Scaled(namespace="default", deployment="paceline-drafter-t4", before=3, after=7)
    assert replicas(cluster, "paceline-drafter-t4") == 7
    assert replicas(cluster, "paceline-drafter-a10") == 3
    assert (await scale(kubeconfig, T4, 0)).after == 0


async def test_a_release_is_named_where_several_have_the_pool(
    cluster: KubeApi, kubeconfig: Path
) -> None:
    cluster.apply(deployment("canary", "drafter", "t4", 1), resource=DEPLOYMENTS)
    with pytest.raises(InvalidArgument, match="release: must be given: canary, paceline"):
        await scale(kubeconfig, T4, 2)
    await scale(kubeconfig, T4, 2, release="canary")
    assert replicas(cluster, "canary-drafter-t4") == 2
    assert replicas(cluster, "paceline-drafter-t4") == 3


async def test_an_unknown_pool(cluster: KubeApi, kubeconfig: Path) -> None:
    with pytest.raises(NotFound, match="no Deployment in namespace default is labelled"):
        await scale(kubeconfig, PoolName.parse("drafter/l4"), 2)
    with pytest.raises(NotFound, match="no Deployment of release x in namespace elsewhere"):
        await scale(kubeconfig, T4, 2, namespace="elsewhere", release="x")


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (scaler("paceline-drafter-t4", "paceline-drafter-t4"), "HorizontalPodAutoscaler paceline"),
        (scaler("keda-hpa-t4", "paceline-drafter-t4", "mine"), "ScaledObject mine"),
    ],
)
async def test_an_autoscaler_keeps_its_pool(
    cluster: KubeApi, kubeconfig: Path, item: Object, named: str
) -> None:
    cluster.apply(item, resource=SCALERS)
    with pytest.raises(FailedPrecondition) as caught:
        await scale(kubeconfig, T4, 7)
    assert f"is scaled by the {named}" in str(caught.value)
    assert "from 2 to 9" in str(caught.value)
    assert "drafter.pools.t4.autoscaling.min and max" in str(caught.value)
    assert replicas(cluster, "paceline-drafter-t4") == 3
    assert (await scale(kubeconfig, PoolName.parse("drafter/a10"), 4)).after == 4


@pytest.mark.parametrize(
    "right",
    [
        "list deployments",
        "list horizontalpodautoscalers",
        "get deployments/scale",
        "patch deployments/scale",
    ],
)
async def test_a_missing_right_is_named(cluster: KubeApi, kubeconfig: Path, right: str) -> None:
    cluster.forbidden = {right}
    with pytest.raises(PermissionDenied, match=f"You lack the right to {right}; .* needs a Role"):
        await scale(kubeconfig, T4, 7)
    assert replicas(cluster, "paceline-drafter-t4") == 3


async def test_strangers_and_broken_servers(cluster: KubeApi, kubeconfig: Path) -> None:
    cluster.token = "another"
    with pytest.raises(PermissionDenied, match="does not know these credentials"):
        await scale(kubeconfig, T4, 7)
    cluster.token, cluster.failure = None, 400
    with pytest.raises(Unavailable, match="answered 400: etcd has no leader"):
        await scale(kubeconfig, T4, 7)


async def test_a_busy_server_is_asked_once_more_and_not_waited_for_longer(
    cluster: KubeApi, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "_MOST_PAUSE_S", 0)
    cluster.failure, cluster.retry_after_s = 429, 3600
    with pytest.raises(Unavailable, match="answered 429"):
        await scale(kubeconfig, T4, 7)
    assert [verb for verb, _ in cluster.requests] == ["list deployments"] * 2


@pytest.mark.parametrize("text", ["t4", "drafter/", "gateway/x", "/x", ""])
def test_pools_are_named_with_their_tier(text: str) -> None:
    with pytest.raises(InvalidArgument, match="pool: must be TIER/NAME"):
        PoolName.parse(text)


def test_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="kubeconfig: cannot be used"):
        Deployments(tmp_path / "none")
