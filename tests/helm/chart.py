"""The chart, rendered by the Helm library: no cluster, no helm binary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "paceline"
EXAMPLES = {file.stem: file for file in sorted((CHART / "examples").glob("*.yaml"))}
RELEASE, NAMESPACE = "demo", "serving"
NAME = "demo-paceline"

Object = dict[str, Any]


def values(example: str) -> dict[str, Any]:
    """The values of an example file."""
    loaded: dict[str, Any] = yaml.safe_load(EXAMPLES[example].read_text(encoding="utf-8"))
    return loaded


def overlay(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lays changes over values the way Helm does: maps merge, all else is replaced."""
    result = deepcopy(dict(base))
    for key, change in changes.items():
        both = isinstance(change, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = overlay(result[key], change) if both else deepcopy(change)
    return result


def render(
    given: Mapping[str, Any], release: str = RELEASE, namespace: str = NAMESPACE
) -> dict[str, str]:
    """Renders every template, after checking the values against the schema.

    Raises:
        helm.HelmError: The values or a template are wrong.
    """
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(dict(given))
        texts: dict[str, str] = chart.render(dict(given), name=release, namespace=namespace)
    return texts


def objects_of(texts: Mapping[str, str]) -> list[Object]:
    """Parses everything but the notes."""
    return [
        item
        for path, text in sorted(texts.items())
        if not path.endswith(".txt")
        for item in yaml.safe_load_all(text)
        if item
    ]


@cache
def example(name: str) -> list[Object]:
    """The objects of an example; not to be changed."""
    return objects_of(render(values(name)))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [item for item in objects if item["kind"] in kinds]


def one(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = (item for item in of_kind(objects, kind) if item["metadata"]["name"] == name)
    return found


def pod_of(deployment: Object) -> Object:
    template: Object = deployment["spec"]["template"]
    return template


def containers(deployment: Object) -> Iterator[Object]:
    spec = pod_of(deployment)["spec"]
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether equality labels match."""
    return all(labels.get(key) == value for key, value in selector.items())


def services(objects: list[Object]) -> list[Object]:
    """The Deployments that run our own services."""
    return [
        item
        for item in of_kind(objects, "Deployment")
        if item["metadata"]["labels"]["app.kubernetes.io/component"] != "store"
    ]
