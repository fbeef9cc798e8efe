"""What a gateway can be told, and refuses: above all to call others in plaintext unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.tls_config import TlsConfig
from gateway import workers
from gateway.config import GatewayConfig

CA = TlsConfig(ca=Path("ca.pem"))
HERE = ("127.0.0.1:7071", "localhost:7071", "[::1]:7071")
ELSEWHERE = [
    "10.0.0.5:7071",
    "verifier:7071",
    "dns:localhost:7071",
    "kubernetes:verifier:grpc",
    "[2001:db8::1]:7071",
]


@pytest.mark.parametrize("target", ELSEWHERE)
@pytest.mark.parametrize("tier", ["verifiers", "drafters"])
def test_workers_elsewhere_need_certificates(tier: str, target: str) -> None:
    targets = {"verifiers": HERE, tier: (*HERE, target)}
    with pytest.raises(ConfigError, match=rf"{tier}: .* set fleet_tls\.ca, or say --insecure"):
        GatewayConfig(**targets)
    GatewayConfig(**targets, fleet_tls=CA)
    GatewayConfig(**targets, insecure=True)


def test_workers_on_this_machine_do_not() -> None:
    GatewayConfig(verifiers=HERE, drafters=HERE)


def test_certificates_that_nobody_would_see_are_an_error() -> None:
    own = TlsConfig(cert=Path("cert.pem"), key=Path("key.pem"))
    with pytest.raises(ConfigError, match=r"fleet_tls\.ca"):
        GatewayConfig(verifiers=HERE, fleet_tls=own)


def test_a_store_elsewhere_is_asked_in_plaintext_only_where_that_is_said() -> None:
    elsewhere = {"verifiers": HERE, "store_url": "redis://store:6379/0"}
    with pytest.raises(ConfigError, match=r"store_url: store .* --store-insecure"):
        GatewayConfig(**elsewhere)
    GatewayConfig(**elsewhere, store_insecure=True)
    GatewayConfig(**elsewhere, insecure=True)
    GatewayConfig(verifiers=HERE, store_url="rediss://store:6379/0")


@pytest.mark.parametrize(
    ("name", "least"),
    [("session_ttl_s", 1), ("max_generation_s", 1), ("slow_reader_s", 0.1), ("grace_s", 0)],
)
def test_a_time_that_would_mean_something_else_is_an_error(name: str, least: float) -> None:
    for wrong in (least - 0.1, float("nan")):
        with pytest.raises(ConfigError, match=f"{name}: must be at least {least}, got"):
            GatewayConfig(verifiers=HERE, **{name: wrong})
    assert getattr(GatewayConfig(verifiers=HERE, **{name: least}), name) == least


def test_reports_come_well_before_a_worker_counts_as_silent() -> None:
    for wrong, limit in ((49, "at least 50"), (5001, "at most 5000")):
        with pytest.raises(ConfigError, match=f"status_interval_ms: must be {limit}, got {wrong}"):
            GatewayConfig(verifiers=HERE, status_interval_ms=wrong)
    slowest = GatewayConfig(verifiers=HERE, status_interval_ms=5000)
    assert slowest.status_interval_ms <= 1e3 * workers._SILENCE_S / 2
