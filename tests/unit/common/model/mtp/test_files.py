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
from common.model.loader import load
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
