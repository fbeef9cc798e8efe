"""What a verifier makes of its settings before it serves."""

from __future__ import annotations

import logging
from pathlib import Path

import huggingface_hub
import pytest

from common.model.mtp.head import MtpHead
from tests import tiny_models
from tests.unit.common.model.mtp import files
from verifier import serving
from verifier.config import EngineConfig, VerifierConfig

SMALL = EngineConfig(kv_bytes=8 << 20)


def test_a_repository_may_bring_its_head_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = files.write("glm4_moe", tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(directory))
    settings = VerifierConfig(model="some/model", eagle="some/model", device="cpu", engine=SMALL)
    _, head = serving._load(settings)
    assert isinstance(head, MtpHead)


@pytest.mark.parametrize("brings", [True, False])
def test_a_log_says_that_one_is_not_used(
    brings: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = files.write if brings else tiny_models.save
    directory = make("glm4_moe", tmp_path)
    caplog.set_level(logging.INFO)
    _, head = serving._load(VerifierConfig(model=str(directory), device="cpu", engine=SMALL))
    assert head is None
    assert any("brings a drafting head along" in each.message for each in caplog.records) == brings
