"""What a verifier makes of its settings before it serves."""

from __future__ import annotations

import logging
from pathlib import Path

import huggingface_hub
import pytest

from common.errors import ModelError
from common.model.keyed_head import KeyedHead
from common.model.mtp.head import MtpHead
from tests import tiny_models
from tests.unit.common.model.mtp import files
from tests.unit.verifier.methods import eagle_files
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


def test_a_head_of_another_directory_is_taken_from_there(tmp_path: Path) -> None:
    target = files.write("glm4_moe", tmp_path / "target")
    head = eagle_files.write(tmp_path / "head", target)
    settings = VerifierConfig(model=str(target), eagle=str(head), device="cpu", engine=SMALL)
    _, found = serving._load(settings)
    assert isinstance(found, KeyedHead)
    assert not isinstance(found, MtpHead)


class _Loads(Exception):
    pass


@pytest.mark.parametrize("eagle", ["some/model", ""])
def test_only_heads_elsewhere_are_looked_for_before_the_model(
    eagle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(settings: VerifierConfig) -> None:
        raise _Loads

    monkeypatch.setattr(serving, "_load", loads)
    with pytest.raises(_Loads):
        serving.run(VerifierConfig(model="some/model", eagle=eagle))
    with pytest.raises(ModelError, match="no such directory"):
        serving.run(VerifierConfig(model="some/model", eagle="some/head"))


def test_nothing_is_said_of_one_that_is_used_and_its_output_layer_is_let_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = str(files.write("glm4_moe", tmp_path))
    caplog.set_level(logging.INFO)
    settings = VerifierConfig(model=directory, eagle=directory, device="cpu", engine=SMALL)
    made, _ = serving._load(settings)
    assert not any("not used" in each.message for each in caplog.records)
    assert made.loaded.output_weight is None


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
