"""What a verifier can be told, and refuses."""

from __future__ import annotations

import math

import pytest

from common.errors import ConfigError
from verifier.config import EngineConfig, VerifierConfig


def test_a_store_elsewhere_is_asked_in_plaintext_only_where_that_is_said() -> None:
    with pytest.raises(ConfigError, match=r"store_url: store .* --store-insecure"):
        VerifierConfig(model="m", store_url="redis://store:6379/0")
    for said in ({"store_insecure": True}, {"insecure": True}):
        VerifierConfig(model="m", store_url="redis://store:6379/0", **said)
    VerifierConfig(model="m", store_url="rediss://store:6379/0")
    VerifierConfig(model="m", store_url="unix:///run/store.sock")


def test_what_every_worker_refuses_it_refuses() -> None:
    with pytest.raises(ConfigError, match="host:"):
        VerifierConfig(model="m", host="0.0.0.0")


@pytest.mark.parametrize(
    ("given", "key"),
    [({"typical_alpha": 0.0}, "typical_alpha"), ({"typical_threshold": 5.0}, "typical_threshold")],
)
def test_typical_acceptance_has_bounds(given: dict[str, float], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine.{key}: must be in \(0, 1\], got"):
        EngineConfig(**given)  # type: ignore[arg-type]


def test_a_share_of_a_gpu_has_bounds() -> None:
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(ConfigError, match=r"gpu_memory_share: must be in \(0, 1\], got"):
            VerifierConfig(model="m", gpu_memory_share=share)
    with pytest.raises(ConfigError, match=r"engine\.kv_bytes: must be at least 0, got -1"):
        EngineConfig(kv_bytes=-1)


def test_no_draft_is_longer_by_itself_than_a_request_may_ask_for() -> None:
    assert EngineConfig(draft_tokens=16).draft_tokens == 16
    with pytest.raises(ConfigError, match=r"draft_tokens: .*max_draft_tokens \(16\), got 17"):
        EngineConfig(draft_tokens=17)


def test_a_step_has_a_row_for_each_sequence_of_the_batch() -> None:
    assert EngineConfig(max_batch_tokens=32).max_running == 32
    with pytest.raises(ConfigError, match=r"max_batch_tokens: .*max_running \(32\), got 31"):
        EngineConfig(max_batch_tokens=31)


@pytest.mark.parametrize("key", ["stream_interval_ms", "session_ttl_s"])
def test_times_are_not_negative(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: must be at least 0"):
        VerifierConfig(model="m", **{key: -3.0})  # type: ignore[arg-type]
