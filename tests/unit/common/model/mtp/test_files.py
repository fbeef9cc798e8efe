"""Layers for multi-token prediction that cannot be used are refused by name and reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers.modeling_layers
from safetensors.torch import load_file, save_file

from common.errors import ModelError
from common.model.eagle.weights import EagleWeights
from common.model.hf import mtp
from common.model.loader import load
from common.model.mtp import checkpoint
from common.model.mtp.layer import MtpLayer
from tests import tiny_models
from tests.unit.common.model.mtp import files
from tests.unit.verifier.methods import eagle_files
from verifier.heads import load_head

Change = Callable[[Path], None]

BEHIND = f"model.layers.{files.LAYERS}"


def _says(**changes: object) -> Change:
    """Changes the configuration."""

    def change(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _has(name: str, tensor: torch.Tensor | None) -> Change:
    """Changes a tensor, or takes it away."""

    def change(path: Path) -> None:
        _rewrite(path, lambda tensors: tensors.pop(f"{BEHIND}.{name}"))
        if tensor is not None:
            _rewrite(path, lambda tensors: tensors.update({f"{BEHIND}.{name}": tensor}))

    return change


def _lost(path: Path) -> None:
    """What some tools write: a configuration of layers that they left out."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(BEHIND)]:
            del tensors[name]

    _rewrite(path, change)


def _rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_says(hidden_size=64), "hidden_size: 64, but target has 48: multi-token prediction"),
        (
            _says(num_hidden_layers=1, num_nextn_predict_layers=2),
            "num_hidden_layers: 1, but target has 2",
        ),
        (_says(num_nextn_predict_layers=0), "this model brings no drafting head along"),
        (_lost, "or its files have no such layers"),
        (
            _says(quantization_config={"quant_method": "fp8"}),
            r"they are held in fewer bits \(fp8\)",
        ),
        (_has("hnorm.weight", None), "hnorm.weight"),
        (_has("self_attn.q_proj.weight", None), "self_attn.q_proj.weight"),
        (_has("eh_proj.weight", torch.ones(48, 48)), "cannot be used: RuntimeError"),
        (
            _has("eh_proj.weight", torch.ones(48, 96).to(torch.float8_e4m3fn)),
            "eh_proj.weight",
        ),
        (lambda path: (path / "model.safetensors").unlink(), "or its files have no such layers"),
    ],
)
def test_a_damaged_one(change: Change, problem: str, tmp_path: Path) -> None:
    path = files.write("glm4_moe", tmp_path / "target")
    loaded = load(str(path), device="cpu")
    change(path)
    with pytest.raises(ModelError, match=rf"^{path}.*{problem}"):
        load_head(str(path), loaded)


@pytest.mark.parametrize("kind", ["gpt_oss", "phi"])
def test_a_kind_that_is_not_known(kind: str, tmp_path: Path) -> None:
    path = files.write(kind, tmp_path / "target")
    loaded = load(str(path), device="cpu")
    with pytest.raises(ModelError, match=rf"^{path}: its multi-token prediction .* cannot be used"):
        load_head(str(path), loaded)


def test_an_older_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files.write("glm4_moe", tmp_path)
    loaded = load(str(path), device="cpu")
    monkeypatch.delattr(transformers.modeling_layers, "MtpModel")
    with pytest.raises(ModelError, match=r"transformers 5\.20 or newer"):
        load_head(str(path), loaded)


def test_other_heads_may_say_so_too(tmp_path: Path) -> None:
    """As those do that took the target's configuration over."""
    target = tiny_models.save("llama", tmp_path / "target")
    path = eagle_files.write(tmp_path / "head", target)
    _says(num_nextn_predict_layers=1)(path)
    assert isinstance(load_head(str(path), load(str(target), device="cpu")), EagleWeights)


def test_one_of_another_directory(tmp_path: Path) -> None:
    """Of a model that is as large."""
    loaded = load(str(tiny_models.save("glm4_moe", tmp_path / "other")), device="cpu")
    layer = load_head(str(files.write("glm4_moe", tmp_path / "target")), loaded)
    assert isinstance(layer, MtpLayer)


@pytest.mark.parametrize("works", [True, False])
def test_it_computes_in_the_models_type_where_that_is_fast(
    works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.write("glm4_moe", tmp_path)
    loaded = load(str(path), dtype="bfloat16", device="cpu")
    monkeypatch.setattr(mtp, "packing_works", lambda dtype: works)
    layer, zero = load_head(str(path), loaded), torch.zeros(1, dtype=torch.int64)
    assert isinstance(layer, MtpLayer)
    found = layer.keys(zero, loaded.embeddings[:1], zero).dtype
    assert found == (torch.bfloat16 if works else torch.float32)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("tried"), "^no room for the multi-token prediction layer of "),
        (RuntimeError("tensor " * 1000), "RuntimeError: (tensor ){42}tensor$"),
    ],
)
def test_what_goes_wrong_is_said_briefly(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.write("glm4_moe", tmp_path)
    loaded = load(str(path), device="cpu")

    def fails(*args: object) -> None:
        raise error

    monkeypatch.setattr(mtp, "_model_of", fails)
    with pytest.raises(ModelError, match=said):
        load_head(str(path), loaded)


def test_the_setting_may_be_nested(tmp_path: Path) -> None:
    path = files.write("glm4_moe", tmp_path)
    file = path / "config.json"
    file.write_text(json.dumps({"text_config": json.loads(file.read_text())}))
    assert checkpoint.is_one(path)


def test_what_is_none_or_cannot_be_read(tmp_path: Path) -> None:
    path = files.write("glm4_moe", tmp_path / "target")
    assert checkpoint.is_usable(path)
    _says(quantization_config={"quant_method": "fp8"})(path)
    assert checkpoint.is_one(path)
    assert not checkpoint.is_usable(path)
    (tmp_path / "config.json").write_text('{"num_nextn_predict_layers": 1}')
    assert not checkpoint.is_one(tmp_path)


@pytest.mark.parametrize(
    ("name", "further"),
    [
        ("model.layers.46.mlp.weight", True),
        ("model.language_model.layers.46.enorm.weight", True),
        ("mtp.fc.weight", True),
        ("model.layers.45.mlp.weight", False),
        ("model.visual.layers.46.mlp.weight", False),
        ("vision_model.encoder.layers.46.mlp.weight", False),
    ],
)
def test_tensors_of_further_layers(name: str, further: bool) -> None:
    assert checkpoint.is_of(range(46, 47), name) == further
