"""What no schema sees: that the objects of a release fit each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import helm_python as helm
import pytest

from tests.helm.chart import (
    CHART,
    EXAMPLES,
    Object,
    containers,
    objects_of,
    of_kind,
    one,
    overlay,
    pod_of,
    render,
    selects,
    services,
    values,
)
from tests.helm.chart import example as example_objects
from tests.helm.variants import VARIANTS

RELEASES = [*EXAMPLES, *VARIANTS]


@pytest.fixture(params=RELEASES, scope="module")
def objects(request: pytest.FixtureRequest) -> list[Object]:
    if request.param in EXAMPLES:
        return example_objects(request.param)
    return objects_of(render(VARIANTS[request.param]))


def labels_of(deployment: Object) -> dict[str, str]:
    return pod_of(deployment)["metadata"]["labels"]


def test_every_deployment_owns_its_pods_alone(objects) -> None:
    deployments = of_kind(objects, "Deployment")
    for one_of_them in deployments:
        selector = one_of_them["spec"]["selector"]["matchLabels"]
        owned = [each for each in deployments if selects(selector, labels_of(each))]
        assert owned == [one_of_them]


def test_every_service_reaches_pods_that_listen_there(objects) -> None:
    for service in of_kind(objects, "Service"):
        selector = service["spec"]["selector"]
        reached = [d for d in of_kind(objects, "Deployment") if selects(selector, labels_of(d))]
        assert reached, service["metadata"]["name"]
        for deployment in reached:
            ports = {p["name"] for c in containers(deployment) for p in c.get("ports", ())}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_every_tier_of_workers_has_a_headless_service(objects) -> None:
    headless = {
        item["metadata"]["name"]
        for item in of_kind(objects, "Service")
        if item["spec"].get("clusterIP") == "None"
    }
    workers = (each["metadata"]["name"] for each in services(objects))
    tiers = {name.rpartition("-")[0] for name in workers if not name.endswith("-gateway")}
    assert headless == tiers


def test_budgets_and_scalers_have_targets(objects) -> None:
    names = {each["metadata"]["name"] for each in of_kind(objects, "Deployment")}
    for budget in of_kind(objects, "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"]
        found = [d for d in of_kind(objects, "Deployment") if selects(selector, labels_of(d))]
        assert [each["metadata"]["name"] for each in found] == [budget["metadata"]["name"]]
    for scaler in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        assert target["name"] in names
        assert (target["apiVersion"], target["kind"]) == ("apps/v1", "Deployment")


def test_replicas_belong_to_the_scaler_where_there_is_one(objects) -> None:
    scaled = {
        item["spec"]["scaleTargetRef"]["name"]
        for item in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    }
    for deployment in services(objects):
        assert ("replicas" in deployment["spec"]) != (deployment["metadata"]["name"] in scaled)


def test_a_scaler_of_the_processor_has_requests_to_compare_with(objects) -> None:
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        if any(metric["type"] == "Resource" for metric in scaler["spec"]["metrics"]):
            name = scaler["spec"]["scaleTargetRef"]["name"]
            for container in pod_of(one(objects, "Deployment", name))["spec"]["containers"]:
                assert container["resources"]["requests"]["cpu"]


def test_the_grace_period_holds_the_pause_the_drain_and_a_margin(objects) -> None:
    for deployment in services(objects):
        spec = pod_of(deployment)["spec"]
        (container,) = spec["containers"]
        pause_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        config = one(objects, "ConfigMap", deployment["metadata"]["name"])["data"]["config.yaml"]
        (line,) = (line for line in config.splitlines() if line.startswith("grace_s: "))
        assert spec["terminationGracePeriodSeconds"] > pause_s + int(line.split()[1])


def test_a_gateway_outlasts_the_verifiers_it_waits_for() -> None:
    """The default values: whoever changes one, changes the other."""
    deployments = services(example_objects("cpu-only"))
    graces = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: pod_of(each)["spec"][
            "terminationGracePeriodSeconds"
        ]
        for each in deployments
    }
    assert graces["gateway"] >= graces["verifier"] > graces["drafter"]


def test_spot_drafters_are_gone_before_the_node_is() -> None:
    least_notice_s = 25  # 30 s on the clouds that give least, less the kubelet's own
    drafter = one(example_objects("spot-drafters"), "Deployment", "demo-paceline-drafter-spot")
    assert pod_of(drafter)["spec"]["terminationGracePeriodSeconds"] <= least_notice_s


def test_probes_ask_the_plaintext_port_for_what_it_answers(objects) -> None:
    for deployment in services(objects):
        (container,) = pod_of(deployment)["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        asked = {
            name: container[f"{name}Probe"]["grpc"] for name in ("startup", "readiness", "liveness")
        }
        assert {each["port"] for each in asked.values()} == {ports["health"]}
        assert asked["readiness"]["service"] == "readiness"
        assert {asked["startup"]["service"], asked["liveness"]["service"]} == {"liveness"}
        assert len(set(ports.values())) == len(ports)


def test_a_slow_start_is_no_failed_rollout(objects) -> None:
    """Not where it waits for a GPU that the pod before it holds, nor at a gateway meanwhile."""
    deadlines_s = {}
    for deployment in services(objects):
        spec = pod_of(deployment)["spec"]
        probe = spec["containers"][0]["startupProbe"]
        start_s = probe["periodSeconds"] * probe["failureThreshold"]
        deadline_s = deployment["spec"]["progressDeadlineSeconds"]
        assert deadline_s > spec["terminationGracePeriodSeconds"] + start_s
        deadlines_s[deployment["metadata"]["name"]] = deadline_s
    assert deadlines_s["demo-paceline-gateway"] == max(deadlines_s.values())


@pytest.mark.parametrize("interval_s", [0.5, 3600])
def test_a_worker_may_count_before_its_rollout_has_failed(interval_s: float) -> None:
    """Kubernetes takes no deadline that is shorter, and it is the rest that is for the start."""
    deadlines_s = []
    for discovery in ("kubernetes", "dns"):
        changes = {"discovery": discovery, "gateway": {"config": {"dns_interval_s": interval_s}}}
        objects = objects_of(render(overlay(VARIANTS["one-verifier"], changes)))
        gateway, verifier = (each["spec"] for each in services(objects))
        deadlines_s.append(verifier["progressDeadlineSeconds"])
        assert gateway["progressDeadlineSeconds"] >= deadlines_s[-1]
    assert deadlines_s[1] == deadlines_s[0] + verifier["minReadySeconds"]


def test_pods_are_replaced_one_by_one_or_all_at_once_as_is_said() -> None:
    objects = objects_of(render(VARIANTS["recreated-and-slow"]))
    strategies = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["strategy"]
        for each in services(objects)
    }
    assert strategies == {
        "gateway": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "verifier": {"type": "Recreate"},
        "drafter": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
    }


def test_volumes_and_mounts_match(objects) -> None:
    for deployment in of_kind(objects, "Deployment"):
        volumes = [each["name"] for each in pod_of(deployment)["spec"]["volumes"]]
        assert len(volumes) == len(set(volumes))
        mounted = set()
        for container in containers(deployment):
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(paths) == len(set(paths))
            mounted |= {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == set(volumes)


def test_no_variable_is_set_twice(objects) -> None:
    for deployment in of_kind(objects, "Deployment"):
        for container in containers(deployment):
            names = [each["name"] for each in container.get("env", ())]
            assert len(names) == len(set(names))


def test_a_variable_of_ones_own_takes_the_place_of_the_charts() -> None:
    for deployment in services(objects_of(render(VARIANTS["downloads"]))):
        (container,) = pod_of(deployment)["spec"]["containers"]
        assert {"name": "HOME", "value": "/home"} in container["env"]


def test_config_maps_and_accounts_exist(objects) -> None:
    maps = {item["metadata"]["name"] for item in of_kind(objects, "ConfigMap")}
    accounts = {item["metadata"]["name"] for item in of_kind(objects, "ServiceAccount")}
    given = {"default", "g", "w"}
    for deployment in services(objects):
        spec = pod_of(deployment)["spec"]
        assert spec["serviceAccountName"] in accounts | given
        (config,) = (each["configMap"] for each in spec["volumes"] if each["name"] == "config")
        assert config["name"] in maps


@pytest.mark.parametrize(
    ("variant", "names"),
    [
        ("one-verifier", ["demo-paceline-gateway", "demo-paceline-worker"]),
        ("named-accounts", []),
        ("one-named-account", ["demo-paceline-worker"]),
        ("own-accounts", []),
    ],
)
def test_accounts_with_a_name_are_there_already(variant: str, names: list[str]) -> None:
    accounts = of_kind(objects_of(render(VARIANTS[variant])), "ServiceAccount")
    assert [each["metadata"]["name"] for each in accounts] == names
    if variant == "one-named-account":
        assert accounts[0]["metadata"]["annotations"] == {"role": "arn"}


def test_only_a_watching_gateway_holds_a_token_and_it_may_only_watch(objects) -> None:
    for deployment in of_kind(objects, "Deployment"):
        spec = pod_of(deployment)["spec"]
        watches = "kubernetes:" in str(
            [item["data"] for item in of_kind(objects, "ConfigMap") if "data" in item]
        ) and deployment["metadata"]["name"].endswith("-gateway")
        assert spec["automountServiceAccountToken"] is watches
    for role in of_kind(objects, "Role"):
        assert role["rules"] == [
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["list", "watch"],
            }
        ]
        binding = one(objects, "RoleBinding", role["metadata"]["name"])
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        gateway = one(objects, "Deployment", "demo-paceline-gateway")
        account = pod_of(gateway)["spec"]["serviceAccountName"]
        assert [subject["name"] for subject in binding["subjects"]] == [account]


def test_restricted_pod_security(objects) -> None:
    """The rules of the Pod Security Standard "restricted"."""
    plain = {"configMap", "emptyDir", "persistentVolumeClaim", "image", "secret", "projected"}
    for deployment in of_kind(objects, "Deployment"):
        spec = pod_of(deployment)["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert all(volume.keys() - {"name"} <= plain for volume in spec["volumes"])
        for container in containers(deployment):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context
            assert all("hostPort" not in port for port in container.get("ports", ()))


def test_the_root_file_system_is_read_only_without_a_gpu(objects) -> None:
    for deployment in of_kind(objects, "Deployment"):
        for container in containers(deployment):
            gpu = "nvidia.com/gpu" in container.get("resources", {}).get("limits", {})
            if "initContainers" not in pod_of(deployment)["spec"] and not gpu:
                assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_spread_constraints_count_their_own_pods() -> None:
    gateway = one(example_objects("t4-a10-h100"), "Deployment", "demo-paceline-gateway")
    (constraint,) = pod_of(gateway)["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"] == gateway["spec"]["selector"]
    assert constraint["topologyKey"] == "topology.kubernetes.io/zone"


def test_a_spread_constraint_may_count_other_pods() -> None:
    selector = {"matchLabels": {"app.kubernetes.io/component": "verifier"}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    constraints = {"topologySpreadConstraints": [{**spread, "labelSelector": selector}]}
    changes = {"verifier": {"defaults": constraints}}
    objects = objects_of(render(overlay(VARIANTS["one-verifier"], changes)))
    verifier = one(objects, "Deployment", "demo-paceline-verifier-v")
    (constraint,) = pod_of(verifier)["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"] == selector


def test_a_worker_found_by_dns_is_found_before_the_next_is_taken() -> None:
    for discovery, ready_s in (("dns", 30 + 20 + 5), ("kubernetes", None)):
        changes = {"discovery": discovery, "gateway": {"config": {"dns_interval_s": 19.5}}}
        for each in services(objects_of(render(overlay(VARIANTS["images-as-volumes"], changes)))):
            worker = not each["metadata"]["name"].endswith("-gateway")
            assert each["spec"].get("minReadySeconds") == (ready_s if worker else None)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "384Mi"),
        ({"maxMemory": "1gb"}, "1536Mi"),
        ({"maxMemory": "65536kb"}, "192Mi"),
        ({"maxMemory": "1gb", "resources": {"limits": {"memory": "2Gi"}}}, "2Gi"),
    ],
)
def test_the_store_has_room_for_what_it_may_hold(changes: dict, limit: str) -> None:
    objects = objects_of(render(overlay(VARIANTS["one-verifier"], {"valkey": changes})))
    (store,) = containers(one(objects, "Deployment", "demo-paceline-valkey"))
    assert store["resources"]["limits"] == {"memory": limit}
    assert store["resources"]["requests"] == {"cpu": "100m", "memory": "128Mi"}


def test_a_store_without_resources_of_its_own_still_has_a_limit() -> None:
    objects = objects_of(render(overlay(VARIANTS["one-verifier"], {"valkey": {"resources": None}})))
    (store,) = containers(one(objects, "Deployment", "demo-paceline-valkey"))
    assert store["resources"] == {"limits": {"memory": "384Mi"}}


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ({}, "docker.io/valkey/valkey:8.1-alpine"),
        ({"registry": ""}, "mirror/all/valkey/valkey:8.1-alpine"),
        ({"registry": "own", "repository": "v"}, "own/v:8.1-alpine"),
        ({"digest": "sha256:" + "0" * 64}, "docker.io/valkey/valkey@sha256:" + "0" * 64),
        ({"repository": "registry.corp/v/v"}, "registry.corp/v/v:8.1-alpine"),
        ({"repository": "registry:5000/v"}, "registry:5000/v:8.1-alpine"),
        ({"repository": "localhost/v"}, "localhost/v:8.1-alpine"),
        ({"repository": "v.1/localhost"}, "v.1/localhost:8.1-alpine"),
        ({"repository": "valkey.v1"}, "docker.io/valkey.v1:8.1-alpine"),
        ({"repository": "v/localhost/w.x"}, "docker.io/v/localhost/w.x:8.1-alpine"),
    ],
)
def test_the_store_s_image_is_named_as_all_are(image: dict, wanted: str) -> None:
    changes = {
        "image": {"registry": "mirror/all"},
        "imagePullSecrets": [{"name": "pull"}],
        "valkey": {"image": image},
    }
    objects = objects_of(render(overlay(VARIANTS["one-verifier"], changes)))
    deployment = one(objects, "Deployment", "demo-paceline-valkey")
    (store,) = containers(deployment)
    assert store["image"] == wanted
    assert pod_of(deployment)["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_a_release_may_have_the_chart_under_several_names(tmp_path: Path) -> None:
    parts = [{"name": "paceline", "version": "0.1.0", "alias": each} for each in ("chat", "code")]
    whole = {"apiVersion": "v2", "name": "whole", "version": "0.1.0", "dependencies": parts}
    (tmp_path / "Chart.yaml").write_text(json.dumps(whole), encoding="utf-8")
    shutil.copytree(CHART, tmp_path / "charts" / "paceline")
    given = {each["alias"]: VARIANTS["one-verifier"] for each in parts}
    with helm.Chart.load(tmp_path) as chart:
        objects = objects_of(chart.render(given, name="demo", namespace="serving"))
    keys = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(keys) == len(set(keys))
    for service in of_kind(objects, "Service"):
        found = [
            each
            for each in of_kind(objects, "Deployment")
            if selects(service["spec"]["selector"], labels_of(each))
        ]
        assert len(found) == 1


def test_a_monitor_scrapes_a_port_that_exists() -> None:
    objects = objects_of(render(VARIANTS["monitored"]))
    (monitor,) = of_kind(objects, "PodMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"]
    scraped = [d for d in of_kind(objects, "Deployment") if selects(selector, labels_of(d))]
    assert scraped == services(objects)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for deployment in scraped:
        (container,) = pod_of(deployment)["spec"]["containers"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert not of_kind(objects_of(render(values("t4-a10-h100"))), "PodMonitor")


def test_images(objects) -> None:
    for deployment in of_kind(objects, "Deployment"):
        for container in containers(deployment):
            name, _, tag = container["image"].rpartition(":")
            assert name
            assert tag != "latest"
