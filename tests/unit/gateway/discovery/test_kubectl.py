"""The fake API server is judged by the real kubectl: what it understands, a cluster would mean."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes import kubeapi
from tests.fakes.kube_resources import BUDGETS, DEPLOYMENTS, NODES, PODS
from tests.fakes.kubeapi import KubeApi
from tests.unit.gateway.discovery.reports import endpoint_slice

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")


@pytest.fixture
async def cluster() -> AsyncIterator[KubeApi]:
    async with kubeapi.serving() as api:
        yield api


@asynccontextmanager
async def kubectl(
    cluster: KubeApi, home: Path, *argv: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    file = home / "kubeconfig"
    file.write_text(kubeapi.kubeconfig(cluster.url))
    process = await asyncio.create_subprocess_exec(
        "kubectl",
        "--cache-dir",
        str(home / "cache"),
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"KUBECONFIG": str(file), "HOME": str(home)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run(cluster: KubeApi, home: Path, *argv: str, text: str = "") -> tuple[int, str, str]:
    async with kubectl(cluster, home, *argv) as process:
        out, err = await process.communicate(text.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_create_get_and_delete(cluster: KubeApi, tmp_path: Path) -> None:
    item = endpoint_slice("v-1", "10.0.0.1") | {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
    }
    create = ("create", "--validate=false", "-f", "-")
    code, _, err = await run(cluster, tmp_path, *create, text=json.dumps(item))
    assert code == 0, err
    cluster.apply(endpoint_slice("other-1", "10.0.0.9", service="other"))
    selector = ("-l", "kubernetes.io/service-name=verifier")
    code, out, _ = await run(cluster, tmp_path, "get", "endpointslices", *selector, "-o", "name")
    assert (code, out.split()) == (0, ["endpointslice.discovery.k8s.io/v-1"])
    path = "jsonpath={.endpoints[0].addresses[0]}"
    code, out, _ = await run(cluster, tmp_path, "get", "endpointslices", "v-1", "-o", path)
    assert (code, out) == (0, "10.0.0.1")
    code, _, err = await run(cluster, tmp_path, *create, text=json.dumps(item))
    assert (code, "AlreadyExists" in err) == (1, True)
    gone = ("delete", "endpointslice", "v-1", "--wait=false")
    assert (await run(cluster, tmp_path, *gone))[0] == 0
    code, _, err = await run(cluster, tmp_path, "get", "endpointslices", "v-1")
    assert (code, "NotFound" in err) == (1, True)


async def test_watch(cluster: KubeApi, tmp_path: Path) -> None:
    cluster.apply(endpoint_slice("v-1", "10.0.0.1"))
    watch = ("get", "endpointslices", "--watch", "--output-watch-events", "-o", "json")
    async with kubectl(cluster, tmp_path, *watch) as process:
        await cluster.until("watch", 1)
        cluster.apply(endpoint_slice("v-2", "10.0.0.2"))
        cluster.delete("v-1")
        assert process.stdout is not None
        seen, text = [], ""
        async with asyncio.timeout(60):
            while len(seen) < 3:
                text += (await process.stdout.readline()).decode()
                try:
                    event = json.loads(text)
                except ValueError:
                    continue
                seen.append((event["type"], event["object"]["metadata"]["name"]))
                text = ""
    assert seen == [("ADDED", "v-1"), ("ADDED", "v-2"), ("DELETED", "v-1")]


async def test_refusals(cluster: KubeApi, tmp_path: Path) -> None:
    cluster.forbidden = {"list"}
    code, _, err = await run(cluster, tmp_path, "get", "endpointslices")
    assert code == 1
    assert 'cannot list resource "endpointslices" in API group "discovery.k8s.io"' in err


def deployment(name: str, replicas: int) -> kubeapi.Object:
    labels = {"app": name}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def pod(name: str, node: str = "n-1") -> kubeapi.Object:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1"}
    metadata = {
        "name": name,
        "uid": name,
        "labels": {"app": "v"},
        "ownerReferences": [owner | {"controller": True}],
    }
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running"}}


def budget(allowed: int) -> kubeapi.Object:
    return {
        "metadata": {"name": "v"},
        "spec": {"selector": {"matchLabels": {"app": "v"}}},
        "status": {"disruptionsAllowed": allowed},
    }


async def test_scale(cluster: KubeApi, tmp_path: Path) -> None:
    cluster.apply(deployment("v", 2), resource=DEPLOYMENTS)
    code, out, err = await run(cluster, tmp_path, "scale", "deployment/v", "--replicas=5")
    assert (code, out) == (0, "deployment.apps/v scaled\n"), err
    found = cluster.get(DEPLOYMENTS, "v")
    assert found is not None
    assert found["spec"]["replicas"] == 5
    get = ("get", "deployment", "v", "--subresource=scale", "-o", "jsonpath={.spec.replicas}")
    assert (await run(cluster, tmp_path, *get))[:2] == (0, "5")
    wrong = ("scale", "deployment/v", "--replicas=1", "--current-replicas=3")
    assert (await run(cluster, tmp_path, *wrong))[0] == 1
    cluster.forbidden = {"patch deployments/scale"}
    code, _, err = await run(cluster, tmp_path, "scale", "deployment/v", "--replicas=1")
    assert (code, 'cannot patch resource "deployments/scale"' in err) == (1, True)


async def test_a_drained_node_has_its_pods_evicted(cluster: KubeApi, tmp_path: Path) -> None:
    cluster.apply({"metadata": {"name": "n-1"}, "spec": {}}, resource=NODES)
    cluster.apply(pod("v-1"), resource=PODS)
    cluster.apply(pod("v-2", node="n-2"), resource=PODS)
    cluster.apply(budget(1), resource=BUDGETS)
    code, out, err = await run(cluster, tmp_path, "drain", "n-1")
    assert code == 0, err
    assert "node/n-1 drained" in out
    assert cluster.get(PODS, "v-1") is None
    assert cluster.get(PODS, "v-2") is not None
    node = cluster.get(NODES, "n-1")
    assert node is not None
    assert node["spec"]["unschedulable"] is True
    assert ("post pods/eviction", {}) in cluster.requests


async def test_a_budget_stands_against_eviction(cluster: KubeApi, tmp_path: Path) -> None:
    cluster.apply({"metadata": {"name": "n-1"}, "spec": {}}, resource=NODES)
    cluster.apply(pod("v-1"), resource=PODS)
    cluster.apply(budget(0), resource=BUDGETS)
    async with kubectl(cluster, tmp_path, "drain", "n-1") as process:
        await cluster.until("post pods/eviction", 1)
        assert cluster.get(PODS, "v-1") is not None
        cluster.apply(budget(1), resource=BUDGETS)  # kubectl asks again
        _, err = await process.communicate()
    assert process.returncode == 0
    assert b"would violate the pod's disruption budget" in err
    assert cluster.get(PODS, "v-1") is None


async def test_a_deleted_pod_is_gone(cluster: KubeApi, tmp_path: Path) -> None:
    cluster.apply(pod("v-1"), resource=PODS)
    code, out, err = await run(cluster, tmp_path, "delete", "pod", "v-1")
    assert (code, out) == (0, 'pod "v-1" deleted\n'), err
    assert cluster.get(PODS, "v-1") is None
