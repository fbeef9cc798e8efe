"""Assistants that cannot be used are refused by name and reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import ModelError
from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.loader import load
from tests import tiny_models
from tests.inprocess import eagle_of, runner
from tests.tiny_models import LARGE_GEMMA4
from tests.unit.common.model.assistant import files

Change = Callable[[Path], None]


def _says(**changes: object) -> Change:
    """Changes the configuration."""

    def change(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _lacks(path: Path) -> None:
    _rewrite(path, lambda tensors: tensors.pop("pre_projection.weight"))


def _is_of_eight_bits(path: Path) -> None:
    name = "pre_projection.weight"
    _rewrite(path, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))


def _is_pickled(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def _repeats(path: Path) -> None:
    _rewrite(path, lambda tensors: tensors["masked_embedding.token_ordering"].zero_())


def _has_thirty_clusters(path: Path) -> None:
    files.write(path, path.parent / "target", ordered=True, num_centroids=30)


def _rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_says(backbone_hidden_size=32), "backbone_hidden_size: 32, but target has 48: this"),
        (_has_thirty_clusters, "num_centroids: 30 do not share 200 tokens"),
        (_says(centroid_intermediate_top_k=21), r"must be 1 to num_centroids \(20\), not 21"),
        (_repeats, "token_ordering: must have each token once"),
        (_lacks, "pre_projection.weight"),
        (lambda path: (path / "model.safetensors").unlink(), "model.safetensors"),
        (_is_pickled, "what pytorch_model.bin holds is not read"),
        (_is_of_eight_bits, "pre_projection.weight"),
        (lambda path: (path / "config.json").unlink(), "config.json: cannot be read"),
    ],
)
def test_a_damaged_one(change: Change, problem: str, tmp_path: Path) -> None:
    ids = {"vocab_size": 200, "vocab_size_per_layer_input": 200}
    target = tiny_models.save(files.TARGET, tmp_path / "target", **ids)
    path = files.write(tmp_path / "assistant", target, ordered=True)
    change(path)
    with pytest.raises(ModelError, match=problem):
        eagle_of(path, runner(target))


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("llama", {}, "an assistant for Gemma 4, which target is not"),
        (files.TARGET, {"vocab_size": 120}, "vocab_size: 199, but target has 120"),
        (
            files.TARGET,
            {"head_dim": 24},
            "it sees 2 keys and values of 32 numbers in all, of which layer 0 of the target has 2",
        ),
    ],
)
def test_one_of_another_model(
    kind: str, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    own = tiny_models.save(files.TARGET, tmp_path / "own")
    path = files.write(tmp_path / "assistant", own)
    target = tiny_models.save(kind, tmp_path / "target", **changes)
    with pytest.raises(ModelError, match=problem):
        eagle_of(path, runner(target))


def test_one_whose_layers_see_keys_that_there_are_none_of(tmp_path: Path) -> None:
    own = tiny_models.save(files.TARGET, tmp_path / "own")
    path = files.write(tmp_path / "assistant", own)
    changes = {**LARGE_GEMMA4, "layer_types": ["full_attention"] * 4, "per_layer_config": {}}
    target = tiny_models.save(files.TARGET, tmp_path / "target", **changes)
    with pytest.raises(ModelError, match="reads keys of sliding_attention, of which target has"):
        eagle_of(path, runner(target))


def test_it_is_no_eagle_head(tmp_path: Path) -> None:
    """As which training measures one."""
    target = tiny_models.save(files.TARGET, tmp_path / "target")
    path = files.write(tmp_path / "assistant", target)
    with pytest.raises(ModelError, match="model_type: an assistant, which is no EAGLE head"):
        eagle_checkpoint.load(path, hidden_size=48, vocab_size=tiny_models.VOCAB, layers=4)


def test_it_is_no_model_of_its_own(tmp_path: Path) -> None:
    """Who gives it as one, or as a drafter, is told how it is used."""
    target = tiny_models.save(files.TARGET, tmp_path / "target")
    path = files.write(tmp_path / "assistant", target)
    with pytest.raises(ModelError, match=r"it drafts with the keys of another model; .* --eagle"):
        load(str(path), device="cpu")
