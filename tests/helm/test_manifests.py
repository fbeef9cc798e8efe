"""Every object of every example is what some version of Kubernetes, or of a controller, takes."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import helm_python as helm
import jsonschema
import kubernetes_validate.utils
import pytest

from tests.helm.chart import CHART, EXAMPLES, Object, example, objects_of, of_kind, render
from tests.helm.variants import VARIANTS

VERSIONS = ("1.30", "1.33", "1.37")
"""The oldest supported, one between, the newest known."""

OWN = Path(__file__).parent / "schemas"
"""Schemas of ours for what is no part of Kubernetes."""


@pytest.fixture(scope="module", autouse=True)
def _schemas_read_once() -> Iterator[None]:
    """The validator would read megabytes anew for each object."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(kubernetes_validate.utils.schema_contents)
        patch.setattr(kubernetes_validate.utils, "schema_contents", once)
        patch.setattr(
            kubernetes_validate.utils, "all_versions", cache(kubernetes_validate.utils.all_versions)
        )
        yield


def check(item: Object, version: str) -> None:
    own = OWN / f"{item['kind'].lower()}.json"
    if own.exists():
        jsonschema.validate(item, json.loads(own.read_text(encoding="utf-8")))
    else:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, version: str) -> None:
    for item in example(name):
        check(item, version)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    for item in objects_of(render(VARIANTS[name])):
        check(item, "1.37")


@pytest.mark.parametrize("word", ["4090", "0x10", "on", "null"])
def test_a_name_is_text_whatever_it_looks_like(word: str) -> None:
    secret = {"existingSecret": word, "key": word}
    given = {
        "nameOverride": word,
        "fullnameOverride": word,
        "tls": {"fleet": {"existingSecret": word}, "public": {"existingSecret": word}},
        "auth": secret,
        "hubToken": secret,
        "valkey": secret,
        "serviceAccount": {"gateway": word, "worker": word},
        "metrics": {"podMonitor": {"enabled": True}},
        "pods": {"priorityClassName": word, "runtimeClassName": word},
        "gateway": {"service": {"loadBalancerClass": word}},
        "verifier": {
            "pools": {
                word: {
                    "accelerator": word,
                    "model": {"hub": "org/model", "cache": {"claimName": word}},
                    "autoscaling": {"kind": "hpa", "hpa": {"desiredReplicas": True}},
                }
            }
        },
        "drafter": {"pools": {word: {"model": {"name": word, "pvc": {"claimName": word}}}}},
    }
    for changes in ({}, {"store": secret}):
        objects = objects_of(render({**given, **changes}, release=word, namespace=word))
        for item in objects:
            check(item, "1.33")
            assert item["metadata"]["namespace"] == word
            assert None not in item["metadata"]["labels"].values()
            assert word in item["metadata"]["labels"].values()


def test_the_checks_see_mistakes() -> None:
    budget = of_kind(example("t4-a10-h100"), "PodDisruptionBudget")[0]
    misspelt = budget | {"spec": budget["spec"] | {"maxUnavailble": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="maxUnavailble"):
        check(misspelt, "1.33")
    scaled = of_kind(example("spot-drafters"), "ScaledObject")[0]
    wrong = scaled | {"spec": scaled["spec"] | {"minReplicas": 1}}
    with pytest.raises(jsonschema.ValidationError, match="minReplicas"):
        check(wrong, "1.33")


def test_names_are_unique() -> None:
    for name in EXAMPLES:
        keys = [(item["kind"], item["metadata"]["name"]) for item in example(name)]
        assert len(keys) == len(set(keys))


def test_the_versions_checked_are_the_oldest_supported_and_the_newest_known() -> None:
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    assert kubernetes_validate.latest_version().startswith(f"{VERSIONS[-1]}.")
