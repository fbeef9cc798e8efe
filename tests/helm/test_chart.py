"""The chart itself: linted, its values checked, its refusals told."""

import tomllib

import helm_python as helm
import pytest
import yaml

from tests.helm.chart import (
    CHART,
    EXAMPLES,
    ROOT,
    objects_of,
    of_kind,
    one,
    overlay,
    render,
    services,
    values,
)

BASE = {"insecure": True, "verifier": {"pools": {"a": {"model": {"path": "/opt/model"}}}}}


@pytest.mark.parametrize("example", EXAMPLES)
def test_lint(example: str) -> None:
    report = helm.lint(CHART, values(example), strict=True, kube_version="v1.33.0")
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gatway": {}}, "gatway"),
        ({"healthPort": "7079"}, "/healthPort"),
        ({"discovery": "consul"}, "/discovery"),
        ({"verifier": {"pools": {"A100": {}}}}, "A100"),
        ({"verifier": {"pools": {"a" * 21: {}}}}, "a" * 21),
        ({"verifier": {"pools": {"a": {"replica": 2}}}}, "replica"),
        ({"verifier": {"pools": {"a": {"preStopS": 0}}}}, "preStopS"),
        ({"verifier": {"pools": {"a": {"model": {"hub": "llama"}}}}}, "hub"),
        ({"verifier": {"pools": {"a": {"extraEnv": [{"name": "PACELINE_X"}]}}}}, "extraEnv"),
        ({"drafter": {"pools": {"d": {"autoscaling": {"kind": "vpa"}}}}}, "kind"),
        ({"tracing": {"otlpEndpoint": "collector:4317"}}, "/tracing/otlpEndpoint"),
        ({"drafter": {"pools": {"d": {"autoscaling": {"kind": "hpa", "min": 0}}}}}, "min"),
        ({"gateway": {"models": {"m": {"hub": "a/b"}}}}, "hub"),
        ({"gateway": {"models": {"m": {"path": "/m", "pvc": {"claimName": "c"}}}}}, "models"),
        ({"store": {"url": "http://store"}}, "/store/url"),
        ({"valkey": {"maxmemory": "1gb"}}, "maxmemory"),
        ({"pods": None}, "missing property 'pods'"),
        ({"gateway": {"config": None}}, "missing property 'config'"),
        ({"verifier": {"defaults": None}}, "missing property 'defaults'"),
        ({"verifier": {"defaults": {"strategy": None}}}, "missing property 'strategy'"),
        ({"drafter": {"defaults": {"config": None}}}, "missing property 'config'"),
        ({"pods": {"pdb": None}}, "missing property 'pdb'"),
    ],
)
def test_the_schema_refuses_what_is_no_setting(changes: dict, message: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        render(overlay(BASE, changes))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "verifier.pools: at least one pool is needed"),
        (
            overlay(BASE, {"verifier": {"pools": {"a": None}}}),
            "verifier.pools: at least one pool is needed",
        ),
        (
            overlay(BASE, {"insecure": False}),
            "gateway: tls.public.existingSecret is needed; or set insecure: true",
        ),
        (
            overlay(BASE, {"insecure": False, "tls": {"public": {"existingSecret": "p"}}}),
            "gateway: auth.existingSecret, gateway.config.auth.jwks or tls.public.client",
        ),
        (
            overlay(
                BASE,
                {
                    "insecure": False,
                    "tls": {"public": {"existingSecret": "p", "clientCertificates": True}},
                },
            ),
            "verifier: tls.fleet.existingSecret is needed",
        ),
        (
            {"verifier": {"pools": {"a": {"replicas": 1}}}},
            "verifier.pools.a.model: exactly one of path, hub, pvc, oci and download is needed",
        ),
        (
            overlay(BASE, {"verifier": {"defaults": {"model": {"hub": "org/model"}}}}),
            "needed, got 2",
        ),
        (
            overlay(BASE, {"verifier": {"defaults": {"config": {"port": 1}}}}),
            "config.port: the chart sets it",
        ),
        (overlay(BASE, {"gateway": {"config": {"verifiers": []}}}), "config.verifiers: the chart"),
        *(
            (
                overlay(BASE, {"verifier": {"defaults": {"config": config}}, **more}),
                f"verifier-a config.{key}: the chart sets it; see values.yaml",
            )
            for config, key, more in (
                ({"store_url": "redis://x:1"}, "store_url", {}),
                ({"store_url": "redis://x:1"}, "store_url", {"valkey": {"enabled": False}}),
                ({"metrics_port": 9464}, "metrics_port", {"metrics": {"enabled": False}}),
                ({"tracing": {"endpoint": "http://c:4317"}}, "tracing.endpoint", {}),
                (
                    {"tracing": {"sample_ratio": 1}},
                    "tracing.sample_ratio",
                    {"tracing": {"enabled": True}},
                ),
                (
                    {"tls": {"cert": "/etc/own/tls.crt"}},
                    "tls.cert",
                    {"tls": {"fleet": {"existingSecret": "f"}}},
                ),
            )
        ),
        *(
            (
                overlay(
                    BASE, {"verifier": {"pools": {"a": {"model": {"path": "", source: given}}}}}
                ),
                f"verifier.pools.a.model.name: is needed where {source} has no path",
            )
            for source, given in (
                ("pvc", {"claimName": "c"}),
                ("pvc", {"claimName": "c", "path": "/"}),
                ("oci", {"reference": "registry/m:1"}),
            )
        ),
        (
            overlay(values("t4-a10-h100"), {"store": {"url": "redis://store:6379/0"}}),
            "store.url: rediss:// is needed; or set store.insecure: true",
        ),
        (
            overlay(values("t4-a10-h100"), {"lanePort": 7079}),
            "lanePort: 7079 is another port of drafters already",
        ),
        (
            overlay(values("t4-a10-h100"), {"lanePort": 9464}),
            "lanePort: 9464 is another port of drafters already",
        ),
        (
            overlay(BASE, {"metrics": {"port": 7079}}),
            "metrics.port: 7079 is another port of gateways already",
        ),
        (
            overlay(BASE, {"healthPort": 7071}),
            "healthPort: 7071 is another port of verifiers already",
        ),
        (
            overlay(BASE, {"gateway": {"autoscaling": {"kind": "hpa", "min": 5}}}),
            "demo-paceline-gateway autoscaling.min: must be from 1 to max, which is 4, got 5",
        ),
        (
            overlay(
                BASE,
                {
                    "pods": {"autoscaling": {"min": 0}},
                    "gateway": {"autoscaling": {"kind": "hpa"}},
                },
            ),
            "demo-paceline-gateway autoscaling.min: must be from 1 to max, which is 4, got 0",
        ),
        (
            overlay(BASE, {"verifier": {"pools": {"a": {"autoscaling": {"kind": "hpa"}}}}}),
            "demo-paceline-verifier-a autoscaling.hpa: resources.requests.cpu is needed",
        ),
        (
            overlay(
                BASE,
                {
                    "metrics": {"enabled": False, "prometheus": {"address": "http://p"}},
                    "verifier": {"defaults": {"autoscaling": {"kind": "keda"}}},
                },
            ),
            "demo-paceline-verifier-a autoscaling: nobody says how many replicas are desired",
        ),
        (
            overlay(
                BASE,
                {
                    "metrics": {"enabled": False},
                    "verifier": {
                        "defaults": {
                            "autoscaling": {"kind": "hpa", "hpa": {"desiredReplicas": True}}
                        }
                    },
                },
            ),
            "demo-paceline-verifier-a autoscaling: nobody says how many replicas are desired",
        ),
    ],
)
def test_what_cannot_be_deployed_is_refused_by_name(given: dict, message: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        render(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("path", ["/models/model", "/models/model/"])
def test_a_path_names_its_model_whatever_it_is(path: str) -> None:
    changes = {"verifier": {"pools": {"a": {"model": {"path": path}}}}}
    objects = objects_of(render(overlay(BASE, changes)))
    config = one(objects, "ConfigMap", "demo-paceline-verifier-a")["data"]["config.yaml"]
    assert f"model: {path}\n" in config


def test_certificates_without_a_secret_may_be_named_in_config() -> None:
    """Such as a volume of extraVolumes brings."""
    files = {"cert": "/certificates/tls.crt", "key": "/certificates/tls.key"}
    changes = {
        "gateway": {"config": {"tls": files, "fleet_tls": files}},
        "verifier": {"defaults": {"config": {"tls": files}}},
    }
    objects = objects_of(render(overlay(BASE, changes)))
    for name, key in (("gateway", "tls"), ("gateway", "fleet_tls"), ("verifier-a", "tls")):
        config = one(objects, "ConfigMap", f"demo-paceline-{name}")["data"]["config.yaml"]
        assert yaml.safe_load(config)[key] == files
    (port,) = one(objects, "Service", "demo-paceline")["spec"]["ports"]
    assert "appProtocol" not in port  # h2c is HTTP/2 in plaintext


def test_a_port_that_is_not_served_is_free_for_lanes() -> None:
    changes = {"lanePort": 9464, "metrics": {"enabled": False, "port": 9464}}
    objects = objects_of(render(overlay(values("t4-a10-h100"), changes)))
    config = one(objects, "ConfigMap", "demo-paceline-drafter-t4")["data"]["config.yaml"]
    assert "lane_port: 9464\n" in config


def test_a_pool_overrides_its_tier_and_the_tier_all_pods() -> None:
    given = overlay(
        BASE,
        {
            "pods": {"priorityClassName": "all", "drainS": 60, "nodeSelector": {"all": "1"}},
            "verifier": {
                "defaults": {"priorityClassName": "tier", "nodeSelector": {"tier": "1"}},
                "pools": {
                    "b": {
                        "model": {"path": "/opt/other"},
                        "priorityClassName": "pool",
                        "nodeSelector": {"pool": "1"},
                        "pdb": {"enabled": False},
                        "replicas": 0,
                    },
                    "c": None,
                },
            },
        },
    )
    objects = objects_of(render(given))
    verifiers = {
        name: one(objects, "Deployment", f"demo-paceline-verifier-{name}") for name in "ab"
    }
    pods = {name: each["spec"]["template"]["spec"] for name, each in verifiers.items()}
    assert pods["a"]["priorityClassName"] == "tier"
    assert pods["b"]["priorityClassName"] == "pool"
    assert pods["a"]["nodeSelector"] == {"all": "1", "tier": "1"}
    assert pods["b"]["nodeSelector"] == {"all": "1", "tier": "1", "pool": "1"}
    assert pods["a"]["terminationGracePeriodSeconds"] == 5 + 60 + 10
    assert verifiers["b"]["spec"]["replicas"] == 0
    budgets = {item["metadata"]["name"] for item in of_kind(objects, "PodDisruptionBudget")}
    assert budgets == {"demo-paceline-gateway", "demo-paceline-verifier-a"}


def test_a_pool_may_be_all_defaults_and_one_that_is_null_is_none() -> None:
    given = overlay(
        BASE,
        {
            "verifier": {"defaults": {"model": {"path": "/opt/model"}}, "pools": {"b": {}}},
        },
    )
    verifiers = {f"demo-paceline-verifier-{pool}" for pool in "ab"}
    for none in ({"d": None}, None):
        rendered = render({**given, "drafter": {"pools": none}})
        names = {each["metadata"]["name"] for each in services(objects_of(rendered))}
        assert names == {"demo-paceline-gateway", *verifiers}
        assert "no drafter pool" in rendered["paceline/templates/NOTES.txt"]
        assert "demo-paceline-drafter" not in str(objects_of(rendered))


def test_large_numbers_stay_whole() -> None:
    changes = {"verifier": {"defaults": {"config": {"engine": {"kv_bytes": 2**40}}}}}
    objects = objects_of(render(overlay(BASE, changes)))
    config = one(objects, "ConfigMap", "demo-paceline-verifier-a")["data"]["config.yaml"]
    assert f"kv_bytes: {2**40}\n" in config


def test_a_change_of_the_configuration_restarts_that_pool_only() -> None:
    def hashes(objects: list) -> dict[str, str]:
        return {
            item["metadata"]["name"]: item["spec"]["template"]["metadata"]["annotations"]
            for item in of_kind(objects, "Deployment")
            if item["spec"]["template"]["metadata"].get("annotations")
        }

    two = overlay(BASE, {"verifier": {"pools": {"b": {"model": {"path": "/opt/b"}}}}})
    before = hashes(objects_of(render(two)))
    changed = overlay(two, {"verifier": {"pools": {"b": {"config": {"dtype": "float16"}}}}})
    after = hashes(objects_of(render(changed)))
    differing = {name for name in before if before[name] != after[name]}
    assert differing == {"demo-paceline-verifier-b"}


@pytest.mark.parametrize("name", ["fullnameOverride", "nameOverride"])
def test_names_fit_into_63_characters(name: str) -> None:
    pools = {"p" * 20: {"model": {"path": "/m"}}}
    given = {
        "insecure": True,
        name: "n" * 60,
        "verifier": {"pools": pools},
        "drafter": {"pools": pools},
    }
    assert max(len(item["metadata"]["name"]) for item in objects_of(render(given))) <= 63


def test_notes_say_what_is_missing() -> None:
    notes = render(overlay(BASE, {"valkey": {"enabled": False}}))["paceline/templates/NOTES.txt"]
    assert "no drafter pool" in notes
    assert "There is no store" in notes
    assert "must carry token ids" in notes
    assert "\n  paceline generate" in notes
    full = render(values("t4-a10-h100"))["paceline/templates/NOTES.txt"]
    assert "PACELINE_CA=ca.crt PACELINE_TOKEN=... paceline generate" in full
    assert "port-forward" not in full
    assert "no drafter pool" not in full
    assert "verifier  h100           4 replicas" in full


@pytest.mark.parametrize(
    "metrics",
    [{"podMonitor": {"enabled": True}}, {"prometheus": {"address": "http://prometheus:9090"}}],
)
def test_notes_say_that_nobody_may_scrape(metrics: dict) -> None:
    given = overlay(BASE, {"metrics": metrics})
    said = "networkPolicy.monitoring is empty"
    assert said in render(given)["paceline/templates/NOTES.txt"]
    for policy in ({"enabled": False}, {"monitoring": [{"podSelector": {}}]}):
        notes = render(overlay(given, {"networkPolicy": policy}))["paceline/templates/NOTES.txt"]
        assert said not in notes


def test_the_versions_of_chart_images_and_services_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["appVersion"] == project["version"]
    for file in (ROOT / "docker").glob("*.Dockerfile"):
        assert f"ARG VERSION={project['version']}\n" in file.read_text(encoding="utf-8")
    for name in EXAMPLES:
        for deployment in services(objects_of(render(values(name)))):
            image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
            assert image.rpartition(":")[2].startswith(project["version"])
