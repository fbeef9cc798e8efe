"""What pods are told is what the services understand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from common import config
from common.model import loader
from drafter.config import DrafterConfig
from gateway.config import GatewayConfig
from gateway.discovery.target import DnsTarget, KubernetesTarget, parse_targets
from tests.helm.chart import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    Object,
    containers,
    example,
    objects_of,
    one,
    overlay,
    pod_of,
    render,
    services,
    values,
)
from tests.helm.variants import VARIANTS
from verifier.config import VerifierConfig

CLASSES: dict[str, Any] = {
    "gateway": GatewayConfig,
    "verifier": VerifierConfig,
    "drafter": DrafterConfig,
}


def load(objects: list[Object], deployment: Object, folder: Path) -> Any:
    """Reads a pod's settings the way its service would."""
    (container,) = pod_of(deployment)["spec"]["containers"]
    tier = container["name"]
    assert container["command"] == ["python", "-m", tier]
    flag, path = container["args"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "config")
    assert path.startswith(mount["mountPath"] + "/")
    file = folder / f"{deployment['metadata']['name']}.yaml"
    data = one(objects, "ConfigMap", deployment["metadata"]["name"])["data"]
    file.write_text(data[path.removeprefix(mount["mountPath"] + "/")], encoding="utf-8")
    secret = "rediss://:password@store:6379/0"
    environment = {each["name"]: each.get("value", secret) for each in container["env"]}
    return config.load(
        CLASSES[tier], [flag, str(file)], prog=tier, description="", environ=environment
    )


def files_of(settings: Any) -> tuple[Path, ...]:
    """Certificates and the file of tenants."""
    fleet = getattr(settings, "fleet_tls", None)
    tokens = settings.auth.tokens if hasattr(settings, "auth") else None
    files = (*settings.tls.files, *(fleet.files if fleet else ()))
    return (*files, tokens) if tokens else files


@pytest.mark.parametrize("name", [*EXAMPLES, *VARIANTS])
def test_every_setting_is_understood(name: str, tmp_path: Path) -> None:
    objects = example(name) if name in EXAMPLES else objects_of(render(VARIANTS[name]))
    for deployment in services(objects):
        settings = load(objects, deployment, tmp_path)
        (container,) = pod_of(deployment)["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert (settings.port, settings.health_port) == (ports["grpc"], ports["health"])
        assert settings.metrics_port == ports["metrics"]
        assert settings.host in ("0.0.0.0", "::")
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        models = getattr(settings, "models", None) or (getattr(settings, "model", ""),)
        read = [*map(str, models), *(str(file) for file in files_of(settings))]
        for path in read:
            if path.startswith(("/models/", "/etc/")):
                assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path


@pytest.mark.parametrize(
    ("discovery", "kind"), [("kubernetes", KubernetesTarget), ("dns", DnsTarget)]
)
def test_gateways_look_for_services_that_exist(discovery: str, kind: type, tmp_path: Path) -> None:
    objects = objects_of(render(overlay(values("t4-a10-h100"), {"discovery": discovery})))
    gateway = one(objects, "Deployment", "demo-paceline-gateway")
    settings = load(objects, gateway, tmp_path)
    for tier in ("verifier", "drafter"):
        (target,) = parse_targets(f"{tier}s", getattr(settings, f"{tier}s"))
        assert isinstance(target, kind)
        if isinstance(target, KubernetesTarget):
            service, namespace = target.service, target.namespace
        else:
            assert isinstance(target, DnsTarget)
            service, namespace, suffix = target.host.split(".")
            assert suffix == "svc"
        assert namespace == NAMESPACE
        found = one(objects, "Service", service)
        (port,) = found["spec"]["ports"]
        assert str(target.port) in (port["name"], str(port["port"]))


def test_the_store_of_the_chart_is_where_the_gateways_look(tmp_path: Path) -> None:
    for name, url in (
        ("one-verifier", "redis://demo-paceline-valkey:6379/0"),
        ("store-with-password", "redis://:$(STORE_PASSWORD)@demo-paceline-valkey:6379/0"),
        ("store-elsewhere", "rediss://store:6380/1"),
        ("no-store-no-policies-six", None),
    ):
        objects = objects_of(render(VARIANTS[name]))
        gateway = one(objects, "Deployment", "demo-paceline-gateway")
        assert load(objects, gateway, tmp_path).store_url == url
        if url and "valkey" in url:
            service = one(objects, "Service", "demo-paceline-valkey")
            assert service["spec"]["ports"][0]["port"] == 6379
        for container in containers(gateway):
            names = [each["name"] for each in container["env"]]
            # Kubernetes fills in $(NAME) only of variables that come before.
            if "STORE_PASSWORD" in names:
                assert names.index("STORE_PASSWORD") < names.index("PACELINE_GATEWAY_STORE_URL")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, True),  # the chart's own store
        ({"valkey": {"enabled": False}}, False),
        ({"store": {"url": "rediss://store:6380/1"}}, False),
        ({"store": {"existingSecret": "store"}}, False),
        ({"store": {"existingSecret": "store", "insecure": True}}, True),
        ({"store": {"url": "redis://store:6379/0", "insecure": True}}, True),
        ({"store": {"url": "redis://store:6379/0"}, "insecure": True}, True),
    ],
)
def test_a_store_is_asked_in_plaintext_only_where_that_is_said(
    changes: dict[str, Any], said: bool, tmp_path: Path
) -> None:
    rendered = render(overlay(values("t4-a10-h100"), changes))
    objects = objects_of(rendered)
    for deployment in services(objects):
        settings = load(objects, deployment, tmp_path)
        assert getattr(settings, "store_insecure", said) is said
    assert ("asked in plaintext" in rendered["paceline/templates/NOTES.txt"]) is said


def test_services_know_each_other_by_certificates(tmp_path: Path) -> None:
    for name in ("t4-a10-h100", "spot-drafters"):
        objects = example(name)
        for deployment in services(objects):
            settings = load(objects, deployment, tmp_path)
            assert not settings.insecure
            if isinstance(settings, GatewayConfig):
                assert settings.tls.serves
                assert settings.auth.required
                assert settings.fleet_tls.mutual
                assert settings.fleet_tls.server_name == "paceline-fleet"
            else:
                assert settings.tls.mutual
                assert settings.tls.server_name == "paceline-fleet"


def test_models_are_fetched_to_where_they_are_looked_for(tmp_path: Path) -> None:
    objects = objects_of(render(VARIANTS["downloads"]))
    for deployment in services(objects):
        settings = load(objects, deployment, tmp_path)
        (init,) = pod_of(deployment)["spec"]["initContainers"]
        # Through what hands signals on: a first process gets none that it does not handle.
        assert init["command"][:4] == ["timeout", "0", "hf", "download"]
        (target,) = (
            each.removeprefix("--local-dir=")
            for each in init["command"]
            if each.startswith("--local-dir=")
        )
        assert target == str(getattr(settings, "model", None) or settings.models[0])
        written = [m["mountPath"] for m in init["volumeMounts"] if not m.get("readOnly")]
        assert target in written
        names = [each["name"] for each in init["env"]]
        assert names == ["HOME", "HF_HOME", "HF_TOKEN", "HTTPS_PROXY"]
        assert "/etc/authority" in {mount["mountPath"] for mount in init["volumeMounts"]}
        (container,) = pod_of(deployment)["spec"]["containers"]
        assert init["resources"] == container["resources"]


def test_workers_fetch_what_their_loader_reads() -> None:
    objects = objects_of(render(VARIANTS["downloads"]))
    for tier in ("verifier", "drafter"):
        (init,) = pod_of(one(objects, "Deployment", f"demo-paceline-{tier}-cpu"))["spec"][
            "initContainers"
        ]
        patterns = [
            each.removeprefix("--include=")
            for each in init["command"]
            if each.startswith("--include=")
        ]
        assert patterns == loader._FILES


def test_the_names_in_values_yaml_are_settings() -> None:
    """Comments there name fields of the configurations."""
    known = {field.key for cls in CLASSES.values() for field in config.fields(cls)}
    named = {
        f"{section}.{name}"
        for section, names in re.findall(r"(\w+): \{([^{}]*…[^{}]*)\}", _comments())
        for name in re.findall(r"\w+(?=: …)", names)
    }
    assert {"auth.jwks", "engine.kv_bytes"} <= named <= known


def _comments() -> str:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    return "\n".join(line.partition("#")[2] for line in lines)
