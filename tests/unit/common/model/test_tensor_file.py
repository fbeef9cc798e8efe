"""Files of tensors: who may read them, and what is said of those that nobody can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from common.model import tensor_file

TENSORS = {"one": torch.arange(3.0)}


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_is_as_readable_as_one_beside_it(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        (tmp_path / "beside.json").touch()
        tensor_file.save(TENSORS, tmp_path / "weights.safetensors")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode for file in tmp_path.iterdir()}
    assert modes["weights.safetensors"] == modes["beside.json"]
    with tensor_file.opened(tmp_path / "weights.safetensors") as file:
        assert torch.equal(file.get_tensor("one"), TENSORS["one"])


def test_a_file_that_cannot_be_opened_is_not_said_to_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    with pytest.raises(FileNotFoundError):
        tensor_file.opened(file)
    file.symlink_to(file)
    with pytest.raises(OSError, match=r"Too many levels of symbolic links: '.*weights\.safe"):
        tensor_file.opened(file)
