"""What the chart's schema says of `config` is what the services can be told.

After a change of their settings:
PACELINE_UPDATE_GOLDEN=1 make test ARGS=tests/helm/test_config_schema.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import helm_python as helm
import pytest

from common.config_schema import fields, strip_none
from drafter.config import DrafterConfig
from gateway.config import GatewayConfig
from tests.helm.chart import CHART, overlay, render
from tests.helm.variants import VARIANTS
from verifier.config import VerifierConfig

CLASSES: dict[str, Any] = {
    "gateway": GatewayConfig,
    "verifier": VerifierConfig,
    "drafter": DrafterConfig,
}
FILE = CHART / "values.schema.json"
TYPES = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}


def schema_of(cls: type[Any]) -> dict[str, Any]:
    """What values may hold of a configuration; nothing is required there."""
    schema = group()
    for field in fields(cls):
        below = schema
        for name in field.path[:-1]:
            below = below["properties"].setdefault(name, group())
        below["properties"][field.path[-1]] = leaf(field.kind)
    return schema


def group() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def leaf(kind: Any) -> dict[str, Any]:
    inner = strip_none(kind)
    if get_origin(inner) is Literal:
        return {"enum": list(get_args(inner))}
    if get_origin(inner) is tuple:
        return {"type": "array", "items": leaf(get_args(inner)[0])}
    return {"type": TYPES[inner] if inner is kind else [TYPES[inner], "null"]}


@pytest.mark.parametrize("tier", CLASSES)
def test_the_schema_has_the_settings_of_each_service(tier: str) -> None:
    schema = json.loads(FILE.read_text(encoding="utf-8"))
    wanted = schema_of(CLASSES[tier])
    if os.environ.get("PACELINE_UPDATE_GOLDEN"):
        schema["definitions"][f"{tier}Config"] = wanted
        FILE.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
    assert schema["definitions"][f"{tier}Config"] == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gateway": {"config": {"dns_intervall_s": 1}}}, "'dns_intervall_s' not allowed"),
        ({"gateway": {"config": {"auth": None}}}, "/gateway/config/auth': got null"),
        ({"verifier": {"defaults": {"config": {"dtyp": "float16"}}}}, "'dtyp' not allowed"),
        ({"verifier": {"pools": {"v": {"config": {"dtype": "fp8"}}}}}, "/config/dtype"),
        (
            {"verifier": {"pools": {"v": {"config": {"engine": {"kv_bytes": "8Gi"}}}}}},
            "/config/engine/kv_bytes': got string",
        ),
        ({"drafter": {"pools": {"d": {"config": {"store_url": ""}}}}}, "'store_url' not allowed"),
    ],
)
def test_what_a_service_would_not_start_with_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        render(overlay(VARIANTS["one-verifier"], changes))
    assert message in str(caught.value)
