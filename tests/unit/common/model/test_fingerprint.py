"""What makes a model another one: all that decides the bits of its logits, and its ends."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.model.fingerprint import fingerprint_of
from common.model.loader import load
from tests import tiny_models


def test_gpus_of_one_name_may_make_different_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of one has fewer units, for which cuBLAS chooses other kernels."""
    directory, prints = tiny_models.save("llama", tmp_path), set()
    facts = load(str(directory), device="cpu")
    for units, tf32 in ((132, False), (66, False), (132, True)):
        gpu = SimpleNamespace(name="NVIDIA H100", multi_processor_count=units)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, gpu=gpu: gpu)
        monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_tf32=tf32))
        where = torch.device("cuda:0")
        prints.add(fingerprint_of(directory, {}, facts, where, "cuda1", 0))
    assert len(prints) == 3


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_model_that_ends_texts_elsewhere_is_another(kind: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path)
    file, prints = directory / "generation_config.json", []
    for ends in (5, [5, 7], [7, 5], [7, 5, -1]):
        settings = json.loads(file.read_text()) | {"eos_token_id": ends}
        file.write_text(json.dumps(settings))
        prints.append(load(str(directory), device="cpu").fingerprint)
    assert prints[0] != prints[1]
    assert prints[1] == prints[2] == prints[3]


def test_only_weights_that_are_read_make_another_model(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path)
    first = load(str(directory), device="cpu").fingerprint
    save_file({"a": torch.zeros(2)}, directory / "adapter_model.safetensors")
    assert load(str(directory), device="cpu").fingerprint == first
    weights = directory / "model.safetensors"
    other = {name: tensor * 2 for name, tensor in load_file(weights).items()}
    save_file(other, weights, {"format": "pt"})
    assert load(str(directory), device="cpu").fingerprint != first


def test_weights_that_a_configuration_names_make_another_model(tmp_path: Path) -> None:
    directory, prints = tiny_models.save("llama", tmp_path), set()
    (directory / "model.safetensors").rename(directory / "other.safetensors")
    config = directory / "config.json"
    named = {"transformers_weights": "other.safetensors"}
    config.write_text(json.dumps(json.loads(config.read_text()) | named))
    for scale in (1, 2):
        weights = load_file(directory / "other.safetensors")
        scaled = {name: tensor * scale for name, tensor in weights.items()}
        save_file(scaled, directory / "other.safetensors", {"format": "pt"})
        prints.add(load(str(directory), device="cpu").fingerprint)
    assert len(prints) == 2
