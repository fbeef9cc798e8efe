"""Files that hold weights in fewer bits: they are widened in a way that is known, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from common.errors import ModelError
from common.model.hf.widening import check_loaded, widen
from common.model.loader import load
from tests import tiny_models
from tests.tiny_models import ARCHITECTURES

UP = "model.layers.0.mlp.up_proj.weight"


def _change(directory: Path, tensors: dict[str, Tensor], without: Iterable[str] = ()) -> None:
    """Puts other tensors into a model's file."""
    file = directory / "model.safetensors"
    kept = {name: each for name, each in load_file(file).items() if name not in without}
    save_file({**kept, **tensors}, file, {"format": "pt"})


def _say(directory: Path, **settings: Any) -> None:
    """Puts settings into a model's configuration."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.uint8, "U8")],
)
def test_fewer_bits_without_a_word_are_refused(
    dtype: torch.dtype, stored: str, tmp_path: Path
) -> None:
    """Whatever their scales are called, and whether there are any."""
    directory = tiny_models.save("llama", tmp_path)
    _change(directory, {UP: torch.ones(96, 48).to(dtype), "up.scale": torch.tensor(0.5)})
    with pytest.raises(ModelError, match=f"{UP} is of type {stored}, and .* no quant"):
        load(str(directory), device="cpu")


def test_masks_of_older_files_are_no_weights(tmp_path: Path) -> None:
    directory = tiny_models.save("gpt2", tmp_path)
    mask = torch.ones(1, 1, 512, 512, dtype=torch.uint8).tril()
    _change(directory, {"transformer.h.0.attn.bias": mask})
    load(str(directory), device="cpu")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", UP),
        ("llama", "model.embed_tokens.weight"),
        ("gpt2", "transformer.h.0.mlp.c_fc.weight"),
        ("qwen3_moe", "model.layers.0.mlp.experts.gate_up_proj"),
    ],
)
def test_what_was_not_widened_is_refused(kind: str, name: str, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **ARCHITECTURES[kind]))
    check_loaded(tmp_path, model)
    weight = model.get_parameter(name).requires_grad_(False)
    weight.data = weight.data.to(torch.float8_e4m3fn)
    with pytest.raises(ModelError, match=rf"{name} was loaded as torch\.float8.* fp8, mxfp4"):
        check_loaded(tmp_path, model)


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("compressed-tensors", {"run_compressed": False}),
        ("fp8", {"dequantize": True}),
        ("mxfp4", {"dequantize": True}),
        ("bitnet", {}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_is_known_is_widened_wherever_it_goes(
    method: str, setting: dict[str, bool], nested: bool
) -> None:
    said = {"quantization_config": {"quant_method": method, "dequantize": False}}
    config = AutoConfig.for_model("gemma3", text_config=said if nested else {})
    part = config.get_text_config() if nested else config
    part.quantization_config = said["quantization_config"]
    assert widen(config) == method
    assert part.quantization_config == said["quantization_config"] | setting
