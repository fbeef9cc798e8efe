"""What tracing can be told, and what it says where packages are missing."""

from __future__ import annotations

import sys

import pytest

from common import config
from common.errors import ConfigError
from common.telemetry.config import TracingConfig
from common.telemetry.traces import open_traces
from drafter.config import DrafterConfig
from gateway.config import GatewayConfig
from verifier.config import VerifierConfig


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endpoint": "collector:4317"}, "tracing.endpoint: must be http://host:port or"),
        ({"endpoint": "http://collector"}, "tracing.endpoint: must be http://host:port or"),
        ({"endpoint": "http://c:port"}, "tracing.endpoint: must be http://host:port or"),
        ({"endpoint": "grpc://c:1"}, "tracing.endpoint: must be http://host:port or"),
        ({"endpoint": "http://user@c:1"}, "tracing.endpoint: must be http://host:port or"),
        ({"sample_ratio": 1.5}, "tracing.sample_ratio: must be in [0, 1], got 1.5"),
        ({"round_ratio": float("nan")}, "tracing.round_ratio: must be in [0, 1], got nan"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TracingConfig(**given)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("https://user:s3cret@h", "'https://…@h'"),
        ("https://user:s3cret@h:4317", "'https://…@h:4317'"),
        ("user:s3cret@h:4317", "'…@h:4317'"),
        ("https://user:s3/@cret@[h", "'https://…@[h'"),
    ],
)
def test_a_password_is_not_shown(endpoint: str, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TracingConfig(endpoint=endpoint)
    assert str(caught.value).endswith(f" got {shown}")


def test_settings_come_by_flag_and_environment() -> None:
    flags = ["--verifier", "127.0.0.1:1", "--metrics-port", "9464"]
    flags += ["--tracing.endpoint", "http://c:4317"]
    environ = {"PACELINE_GATEWAY_TRACING__SAMPLE_RATIO": "0.5"}
    settings = config.load(GatewayConfig, flags, prog="gateway", description="", environ=environ)
    assert settings.metrics_port == 9464
    assert settings.tracing == TracingConfig(endpoint="http://c:4317", sample_ratio=0.5)


@pytest.mark.parametrize("cls", [VerifierConfig, DrafterConfig])
def test_a_port_is_checked(cls: type) -> None:
    with pytest.raises(ConfigError, match="metrics_port: must be in"):
        cls(model="m", metrics_port=70000)


def test_missing_packages_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "common.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError) as caught:
        open_traces(TracingConfig(endpoint="http://127.0.0.1:1"), "gateway")
    assert str(caught.value) == (
        "tracing.endpoint: opentelemetry is missing; pip install 'paceline-server[telemetry]'"
    )
