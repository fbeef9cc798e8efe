"""Models as llama.cpp reads them; that it writes the same ids, `test_llama_cpp` tries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bench.contenders.gguf_file import _turned, write
from common.errors import StartupError
from tests import tiny_models

SIZE = 12


def _written(model: Path, dtype: str, tmp: Path) -> gguf.GGUFReader:
    write(model, dtype, tmp / "model.gguf")
    return gguf.GGUFReader(tmp / "model.gguf")


def _field(reader: gguf.GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    assert field is not None, name
    return field.contents()


def test_sizes_and_ends_are_those_of_the_model(tmp_path: Path) -> None:
    reader = _written(tiny_models.save("llama", tmp_path), "auto", tmp_path)
    found = {
        name: _field(reader, f"llama.{name}")
        for name in (
            "block_count",
            "context_length",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "rope.dimension_count",
            "rope.freq_base",
            "vocab_size",
        )
    }
    assert list(found.values()) == [2, tiny_models.MAX_LEN, 48, 96, 4, 2, 12, 12, 10_000.0, 199]
    assert _field(reader, "tokenizer.ggml.eos_token_id") == 2
    assert len(_field(reader, "tokenizer.ggml.tokens")) == tiny_models.VOCAB


@pytest.mark.parametrize(
    ("dtype", "kind"), [("auto", "F32"), ("float32", "F32"), ("bfloat16", "BF16")]
)
def test_matrices_have_the_type_asked_for_and_vectors_are_wide(
    dtype: str, kind: str, tmp_path: Path
) -> None:
    reader = _written(
        tiny_models.save("qwen2", tmp_path, use_sliding_window=False), dtype, tmp_path
    )
    assert {(len(one.shape), one.tensor_type.name) for one in reader.tensors} == {
        (1, "F32"),
        (2, kind),
    }


def test_every_weight_is_there_and_none_is_rounded(tmp_path: Path) -> None:
    model = tiny_models.save("qwen3", tmp_path)
    reader = _written(model, "auto", tmp_path)
    found = {one.name: torch.from_numpy(one.data.copy()) for one in reader.tensors}
    weights = load_file(model / "model.safetensors")
    assert len(found) == len(weights)
    assert torch.equal(found["token_embd.weight"], weights["model.embed_tokens.weight"])
    for part, name in (("attn_q", "self_attn.q_proj"), ("ffn_down", "mlp.down_proj")):
        assert torch.equal(found[f"blk.1.{part}.weight"], weights[f"model.layers.1.{name}.weight"])


def test_matrices_are_rounded_and_vectors_are_not(tmp_path: Path) -> None:
    model = tiny_models.save("llama", tmp_path, hidden_size=64)
    write(model, "auto", tmp_path / "model.gguf", quantize="int8")
    found = gguf.GGUFReader(tmp_path / "model.gguf").tensors
    assert {(len(one.shape), one.tensor_type.name) for one in found} == {(1, "F32"), (2, "Q8_0")}
    down = next(one for one in found if one.name == "blk.1.ffn_down.weight")
    weight = load_file(model / "model.safetensors")["model.layers.1.mlp.down_proj.weight"]
    rounded = torch.from_numpy(gguf.quants.dequantize(down.data, down.tensor_type))
    steps = weight.view(64, 3, 32).abs().amax(-1, keepdim=True) / 127
    off = (rounded - weight).view(64, 3, 32).abs() / steps
    assert off.max() < 0.57, "half a step, and what a scale of 16 bits is off"


def test_what_llama_cpp_cannot_round_is_refused(tmp_path: Path) -> None:
    model = tiny_models.save("llama", tmp_path)
    with pytest.raises(StartupError, match=r"has 48 inputs; .* multiples of 32"):
        write(model, "auto", tmp_path / "model.gguf", quantize="int8")


def test_what_is_tied_is_written_once(tmp_path: Path) -> None:
    reader = _written(
        tiny_models.save("llama", tmp_path, tie_word_embeddings=True), "auto", tmp_path
    )
    assert "output.weight" not in {one.name for one in reader.tensors}


def test_turned_heads_have_the_products_they_had() -> None:
    """Rotary embedding of halves of a head, as in transformers, and of pairs, as in llama.cpp."""
    generator = torch.Generator().manual_seed(0)
    draw = {"generator": generator, "dtype": torch.float64}
    weights = {name: torch.randn(2 * SIZE, 7, **draw) for name in (".q_proj.", ".k_proj.")}
    hidden, angles = torch.randn(7, **draw), torch.randn(2, SIZE // 2, **draw)
    halves, pairs = [], []
    for (name, weight), turns in zip(weights.items(), angles, strict=True):
        halves.append(_rotated((weight @ hidden).view(2, 2, SIZE // 2), turns, 1))
        pairs.append(
            _rotated((_turned(name, weight, SIZE) @ hidden).view(2, SIZE // 2, 2), turns, 2)
        )
    assert torch.allclose((halves[0] * halves[1]).sum((1, 2)), (pairs[0] * pairs[1]).sum((1, 2)))
    assert torch.equal(_turned(".v_proj.", weights[".q_proj."], SIZE), weights[".q_proj."])


def _rotated(heads: Tensor, turns: Tensor, axis: int) -> Tensor:
    """Heads whose two parts lie along an axis, each pair turned by its angle."""
    one, two = heads.unbind(axis)
    cos, sin = turns.cos(), turns.sin()
    return torch.stack((one * cos - two * sin, two * cos + one * sin), axis)


@pytest.mark.parametrize("ends", [2, [2, 7, 9]])
def test_ends_are_those_that_texts_are_generated_with(
    ends: int | list[int], tmp_path: Path
) -> None:
    model = tiny_models.save("llama", tmp_path, eos_token_id=3)
    generation = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": ends}))
    reader = _written(model, "auto", tmp_path)
    found = [reader.get_field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    assert [field.contents() for field in found if field] == (ends if ends != 2 else [2])


def test_scaled_rope_is_refused_in_older_configurations(tmp_path: Path) -> None:
    model = tiny_models.save("llama", tmp_path)
    config = json.loads((model / "config.json").read_text())
    del config["rope_parameters"]
    scaling = {"rope_type": "linear", "factor": 2.0}
    (model / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling}))
    with pytest.raises(StartupError, match="scaled RoPE"):
        write(model, "auto", tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"eos_token_id": None}, "llama.cpp takes one to 3 ends, not None"),
        ("gpt2", {}, "written for llama.cpp are llama, qwen2, qwen3, not gpt2"),
        ("qwen2", {}, "scaled RoPE, or a window"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "scaled RoPE, or a window",
        ),
    ],
)
def test_what_would_be_another_model_there_is_refused(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StartupError, match=message):
        write(tiny_models.save(kind, tmp_path, **changes), "auto", tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
