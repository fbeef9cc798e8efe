"""Where models are loaded, and what is said where they do not fit."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from common import accelerator
from common.errors import ModelError
from common.model import loader
from common.model.checkpoint import reader as checkpoint_reader
from common.model.hf import parts as hf_parts
from common.model.hf.model import _Modules
from common.model.kernels import Kernels
from common.model.kv_cache import KvLease
from common.model.llama import Linear, LlamaLayer
from common.model.loader import Dtype, device_name, load
from common.model.native import instructions
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models

TOO_OLD = "The NVIDIA driver on your system is too old."
FULL = "CUDA out of memory."


@pytest.fixture
def old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is counted, and does not start."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(accelerator, "fault", lambda name: TOO_OLD)


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_gpu_that_computes_nothing_is_refused(name: str, old_driver: None) -> None:
    with pytest.raises(ModelError, match=f"^device {name}: {TOO_OLD}$"):
        device_name(name)


def test_where_a_gpu_is_left_out_the_log_says_why(
    old_driver: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert device_name("cpu") == "cpu"
    assert not caplog.records, "nobody asked for it"
    assert device_name("auto") == "cpu"
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["reason"]) == ("WARNING", TOO_OLD)


def test_where_there_is_no_gpu_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_name("auto") == "cpu"
    assert not caplog.records


def test_a_gpu_has_the_number_that_its_tensors_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    numbered = {"cpu": "cpu", "cuda:0": "cuda:0", "cuda": "cuda:2"}
    assert {name: str(loader._device(name)) for name in numbered} == numbered
    monkeypatch.setattr(loader, "_in_parallel", lambda: True)
    assert str(loader._device("cuda")) == "cuda", "each process is given its own later"


@pytest.mark.parametrize("tensor", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj"])
def test_a_model_too_large_to_read_is_refused(
    tensor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its last layers are, which are read one by one."""
    read = checkpoint_reader._Reader._tensor

    def full(reader: Any, name: str) -> Tensor:
        if name.startswith(tensor):
            raise torch.OutOfMemoryError(FULL)
        return read(reader, name)

    monkeypatch.setattr(checkpoint_reader._Reader, "_tensor", full)
    directory = tiny_models.save("llama", tmp_path)
    with pytest.raises(ModelError, match=f"^no room for {directory} on cpu: {FULL} .*quantize"):
        load(str(directory), device="cpu")


@pytest.mark.parametrize("part", [nn.Embedding, nn.Module])
def test_a_model_too_large_to_move_is_refused(
    part: type[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its embeddings, or all of it."""
    move = nn.Module.to

    def full(module: nn.Module, device: torch.device) -> nn.Module:
        if isinstance(module, part) and (part is nn.Embedding or list(module.children())):
            raise torch.OutOfMemoryError(FULL)
        return move(module, device)

    directory = tiny_models.save("gpt2", tmp_path)
    monkeypatch.setattr(nn.Module, "to", full)
    with pytest.raises(ModelError, match=f"^no room for {directory} on cpu: {FULL} .*quantize"):
        load(str(directory), device="cpu")


@pytest.mark.parametrize("keep", [False, True])
def test_the_output_matrix_is_kept_where_somebody_wants_it(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the packed one."""
    read, there = checkpoint_reader._Reader._tensor, []

    def watched(reader: Any, name: str) -> Tensor:
        tensor = read(reader, name)
        if name == "lm_head.weight":
            there.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(checkpoint_reader._Reader, "_tensor", watched)
    directory = str(tiny_models.save("llama", tmp_path))
    loaded = load(directory, device="cpu", dtype="bfloat16", keep_output=keep)
    assert loaded.output_weight is there[0]()
    assert keep is (there[0]() is not None)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("llama", "auto"),
        ("gemma3_text", "auto"),
        ("gemma3_text", "bfloat16"),
        ("gpt2", "auto"),
        ("gpt_oss", "auto"),
    ],
)
def test_a_file_that_is_overwritten_afterwards_changes_nothing(
    kind: str, dtype: Dtype, tmp_path: Path
) -> None:
    """Nor does one that is cut short end the process: weights are in no pages of a file."""
    directory = tiny_models.save(kind, tmp_path)
    target = Runner(load(str(directory), device="cpu", dtype=dtype), kv_bytes=1 << 20)
    if isinstance(target.loaded.forward, _Modules):  # whose embeddings are there once
        used = target.loaded.forward._model.get_input_embeddings()
        assert used.weight.data_ptr() == target.loaded.embeddings.data_ptr()
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(20)
    rows = Segment(list(range(3, 23)), 0, lease.slots, wanted=range(20))
    before = target.forward([rows]).logits.clone()
    file = directory / "model.safetensors"
    with file.open("r+b") as stream:
        stream.write(bytes(file.stat().st_size))
    assert torch.equal(target.forward([rows]).logits, before)


@pytest.mark.parametrize(
    ("kind", "where", "kernels"),
    [
        ("qwen3_moe", checkpoint_reader, "auto"),
        ("glm4_moe", hf_parts, "auto"),
        ("llama", checkpoint_reader, "torch"),
    ],
    ids=["read", "taken", "fused"],
)
def test_what_layers_were_made_of_is_given_back_one_by_one(
    kind: str,
    where: ModuleType,
    kernels: Kernels,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the pieces of all of them lie about until the last is loaded."""
    if not instructions(torch.bfloat16):
        pytest.skip("layers stay as they are read")
    make, made, counts = LlamaLayer.__init__, list[list[StorageWeakRef]](), []

    def watched(layer: LlamaLayer, **parts: Any) -> None:
        weights = [part.weight for part in parts.values() if isinstance(part, Linear)]
        made.append([StorageWeakRef(weight.untyped_storage()) for weight in weights])
        make(layer, **parts)

    def give_back() -> None:
        assert all(weight.expired() for layer in made for weight in layer)
        counts.append(len(made))

    monkeypatch.setattr(LlamaLayer, "__init__", watched)
    monkeypatch.setattr(where, "give_back", give_back)
    directory = tiny_models.save(kind, tmp_path)
    load(str(directory), device="cpu", dtype="bfloat16", kernels=kernels)
    assert counts == [1, 2]
