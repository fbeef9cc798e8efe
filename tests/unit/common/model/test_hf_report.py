"""What a log says of tensors that nobody asked for, and in how many lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as hf_logging

from common.model.loader import load
from tests import tiny_models

BIAS = "model.layers.0.self_attn.q_proj.bias"


def _add(directory: Path, *names: str) -> str:
    file = directory / "model.safetensors"
    save_file(
        {**load_file(file), **{name: torch.ones(2) for name in names}}, file, {"format": "pt"}
    )
    return str(directory)


def test_a_line_says_which_tensors_are_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = _add(tiny_models.save("llama", tmp_path), BIAS, "zeros")
    hf_logging.enable_default_handler()  # as it is in a process that has loaded nothing
    capfd.readouterr()
    load(directory, device="cpu")
    (said,) = (each.__dict__ for each in caplog.records if each.levelname == "WARNING")
    assert said["msg"] == "tensors of a model's files are not used"
    assert (said["path"], said["count"], said["first"]) == (str(tmp_path), 2, BIAS)
    assert capfd.readouterr().err == ""


def test_nothing_is_said_of_layers_that_predict_further_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    names = "mtp.layers.0.up_proj.weight", "model.mtp.norm.weight", "model.layers.2.eh_proj.weight"
    directory = _add(tiny_models.save("llama", tmp_path, num_nextn_predict_layers=1), *names)
    capfd.readouterr()
    load(directory, device="cpu")
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    assert capfd.readouterr().err == ""


def test_layers_that_a_configuration_leaves_out_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load(_add(tiny_models.save("llama", tmp_path), "model.layers.2.norm.weight"), device="cpu")
    (said,) = (each.__dict__ for each in caplog.records if each.levelname == "WARNING")
    assert (said["count"], said["first"]) == (1, "model.layers.2.norm.weight")
