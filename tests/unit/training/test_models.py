"""Models that training reads and writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ModelError
from tests.unit.training.full_disk import full_after
from training.encode import Encoder
from training.errors import RunError
from training.models import load_model, save_model


def test_a_saved_model_is_as_readable_as_its_config(target: Path) -> None:
    modes = {file.name: file.stat().st_mode for file in target.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


@pytest.mark.parametrize("most_bytes", [0, 20_000], ids=["config", "weights"])
def test_a_full_disk_is_named(
    most_bytes: int, target: Path, encoder: Encoder, tmp_path: Path
) -> None:
    model, out = load_model(target), tmp_path / "model"
    with (
        full_after(most_bytes),
        pytest.raises(RunError, match=r"/model: cannot be written: .*File too large"),
    ):
        save_model(model, encoder.tokenizer, out)


def test_a_model_that_cannot_be_opened_is_not_said_to_be_missing(
    target: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((target / "config.json").read_bytes())
    file = tmp_path / "model.safetensors"
    file.symlink_to(file)
    with pytest.raises(ModelError, match=r"weights cannot be loaded: .*Too many levels"):
        load_model(tmp_path)
