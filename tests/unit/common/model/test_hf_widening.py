"""Files that hold weights in fewer bits: they are widened in a way that is known, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers import quantizer_mxfp4

from common.errors import ModelError
from common.model.hf import HfModel, report
from common.model.hf.widening import check_loaded, check_stored, even, widen
from common.model.loader import load
from common.model.weight_files import Stored
from tests import tiny_models
from tests.tiny_models import ARCHITECTURES

UP = "model.layers.0.mlp.up_proj.weight"
CPU = torch.device("cpu")
BLOCK = 8, 16
"""Rows and columns of float8 that have one scale."""
F8 = Stored("F8_E4M3", (256, 256))


def _change(directory: Path, tensors: dict[str, Tensor], without: Iterable[str] = ()) -> None:
    """Puts other tensors into a model's file."""
    file = directory / "model.safetensors"
    kept = {name: each for name, each in load_file(file).items() if name not in without}
    save_file({**kept, **tensors}, file, {"format": "pt"})


def _names(directory: Path) -> list[str]:
    """Of a model's tensors."""
    return list(load_file(directory / "model.safetensors"))


def _say(directory: Path, **settings: Any) -> None:
    """Puts settings into a model's configuration."""
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def _round_to_float8(
    directory: Path, block: tuple[int, int] = BLOCK, method: str = "fp8"
) -> dict[str, Tensor]:
    """Rounds what a model multiplies by in its file; returns what that stands for, in bfloat16."""
    _say(directory, quantization_config={"quant_method": method, "weight_block_size": block})
    rounded, stands_for = {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        if name.endswith("_proj.weight") or "_proj_" in name:
            rows, columns = (
                -(-size // step) for size, step in zip(weight.shape, block, strict=True)
            )
            scales = 2.0 ** torch.randint(-6, 0, (rows, columns))
            wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            wide = wide[: len(weight), : weight.shape[1]]
            rounded[name] = (weight / wide).to(torch.float8_e4m3fn)
            exponents = (scales.log2() + 127).to(torch.uint8)
            rounded[f"{name}_scale_inv"] = exponents if method == "mxfp8" else scales
            stands_for[name] = (rounded[name].float() * wide).bfloat16()
    _change(directory, rounded)
    return stands_for


@pytest.mark.parametrize("part", ["model.safetensors", "parts/a.safetensors"])
@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.uint8, "U8")],
)
def test_fewer_bits_without_a_word_are_refused(
    dtype: torch.dtype, stored: str, part: str, tmp_path: Path
) -> None:
    """Whatever their scales are called, and whether there are any."""
    directory = tiny_models.save("llama", tmp_path)
    _change(directory, {UP: torch.ones(96, 48).to(dtype), "up.scale": torch.tensor(0.5)})
    tiny_models.split(directory, part)
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


def test_what_was_loaded_packed_is_refused(tmp_path: Path) -> None:
    """As other libraries have it, until it is first used."""
    config = AutoConfig.for_model("llama", **ARCHITECTURES["llama"])
    model = AutoModelForCausalLM.from_config(config)
    del model.model.layers[0].mlp.up_proj.weight
    with pytest.raises(
        ModelError, match=r"model\.layers\.0\.mlp\.up_proj was loaded packed; .*fp8"
    ):
        check_loaded(tmp_path, model)


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("compressed-tensors", {"dequantize": True, "run_compressed": False}),
        ("fp8", {"dequantize": True}),
        ("mxfp4", {"dequantize": True}),
        ("mxfp8", {"dequantize": True}),
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
    assert widen(config) == said["quantization_config"]
    assert part.quantization_config == said["quantization_config"] | setting


@pytest.fixture(params=[False, True], ids=["alone", "beside a GPU"])
def _host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a GPU, or with one that multiplies float8, and with kernels for MXFP4."""
    if request.param:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(quantizer_mxfp4, "is_kernels_available", lambda: True)


@pytest.mark.usefixtures("_host")
@pytest.mark.parametrize(
    ("kind", "method"),
    [("qwen3", "fp8"), ("qwen3_moe", "fp8"), ("deepseek_v3", "fp8"), ("qwen3", "mxfp8")],
)
def test_float8_is_widened_by_its_scales(kind: str, method: str, tmp_path: Path) -> None:
    ranks = {"q_lora_rank": 32} if kind == "deepseek_v3" else {}
    directory = tiny_models.save(kind, tmp_path, **ranks)
    expected = _round_to_float8(directory, method=method)
    model = HfModel(directory, torch.bfloat16, CPU)._model
    assert {type(each) for each in model.modules() if "FP8" in type(each).__name__} == set()
    found = {name: weight for name, weight in model.named_parameters() if name in expected}
    assert found
    for name, weight in found.items():
        assert torch.equal(weight.bfloat16(), expected[name])


@pytest.mark.parametrize(
    ("block", "served"),
    [
        ((8, 16), True),
        ((24, 48), True),
        ((64, 128), False),  # of 96 rows half a block would be left
        ((128, 128), True),  # one has all
    ],
)
def test_float8_is_of_whole_blocks(block: tuple[int, int], served: bool, tmp_path: Path) -> None:
    """How large they are is taken from how many there are."""
    directory = tiny_models.save("llama", tmp_path)
    expected = _round_to_float8(directory, block)
    if served:
        found = HfModel(directory, torch.bfloat16, CPU)._model.get_parameter(UP)
        assert torch.equal(found, expected[UP])
        return
    words = (
        r"gate_proj\.weight: \[96, 48\] with scales \[2, 1\] is not of whole blocks of \[64, 128\]"
    )
    with pytest.raises(ModelError, match=words):
        load(str(directory), device="cpu")


@pytest.mark.parametrize("scales", [None, torch.ones(12), torch.ones(3, 12)])
def test_float8_has_scales_of_its_shape(scales: Tensor | None, tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path)
    _round_to_float8(directory)
    others = {} if scales is None else {f"{UP}_scale_inv": scales}
    _change(directory, others, [f"{UP}_scale_inv"])
    with pytest.raises(ModelError, match=f"{UP}( has no scales|: .* cannot be widened)"):
        load(str(directory), device="cpu")


@pytest.mark.usefixtures("_host")
def test_mxfp4_is_widened(tmp_path: Path) -> None:
    """Each number is half of two to the power of its scale."""
    directory = tiny_models.save("gpt_oss", tmp_path, hidden_size=64, intermediate_size=32)
    _say(directory, quantization_config={"quant_method": "mxfp4"})
    rounded, names = {}, [f"model.layers.{layer}.mlp.experts" for layer in range(2)]
    for name in names:
        for part, (outputs, inputs) in (("gate_up_proj", (64, 64)), ("down_proj", (64, 32))):
            blocks = torch.full((4, outputs, inputs // 32, 16), 0x11, dtype=torch.uint8)
            rounded[f"{name}.{part}_blocks"] = blocks
            rounded[f"{name}.{part}_scales"] = torch.full(blocks.shape[:3], 125, dtype=torch.uint8)
    _change(directory, rounded, [name for name in _names(directory) if name.endswith("_proj")])
    whole = HfModel(directory, torch.bfloat16, CPU)
    for name in names:
        assert (whole._model.get_parameter(f"{name}.down_proj") == 0.125).all()
        assert whole._model.get_parameter(f"{name}.gate_up_proj").shape == (4, 64, 64)
    assert not whole.lacks, "kernels of ours run it"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, None])
def test_what_was_widened_is_of_one_type(dtype: torch.dtype | None, tmp_path: Path) -> None:
    """Of that which is asked for, or said; not of that of scales, or of what was left wide."""
    directory = tiny_models.save("qwen3", tmp_path)
    _say(directory, dtype="bfloat16")
    _round_to_float8(directory)
    whole = HfModel(directory, dtype, CPU)
    assert {each.dtype for each in whole._model.parameters()} == {dtype or torch.bfloat16}
    assert whole.facts.dtype == (dtype or torch.bfloat16)


def test_what_a_model_keeps_in_float32_stays_so() -> None:
    config = AutoConfig.for_model("qwen3", **ARCHITECTURES["qwen3"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model._keep_in_fp32_modules_strict, model._keep_in_fp32_modules = {"up_proj"}, {"norm"}
    even(model, torch.bfloat16)
    for name, weight in model.named_parameters():
        assert weight.dtype == (torch.float32 if "up_proj" in name else torch.bfloat16)


@pytest.mark.parametrize(
    ("said", "scales"),
    [
        ({}, {"up.weight_scale_inv": Stored("F32", (2, 2))}),
        ({}, {"up.scale": Stored("F32", (2, 2))}),
        ({}, {"up.qscale_weight": Stored("F32", ())}),
        ({"weight_block_size": None}, {"up.weight_scale_inv": Stored("F32", (256, 1))}),
    ],
)
def test_scales_may_have_any_of_their_names_and_sizes(
    said: dict[str, Any], scales: dict[str, Stored]
) -> None:
    check_stored(Path("m"), {"up.weight": F8, **scales}, {"quant_method": "fp8", **said})


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2"])
@pytest.mark.parametrize("method", ["fp8", "mxfp8"])
def test_float8_of_either_kind_has_scales(method: str, dtype: str) -> None:
    stored = {"up.weight": Stored(dtype, (256, 256))}
    with pytest.raises(ModelError, match=r"m: up\.weight has no scales beside it"):
        check_stored(Path("m"), stored, {"quant_method": method})


def test_blocks_are_of_128_where_nobody_says() -> None:
    stored = {"up.weight": F8, "up.weight_scale_inv": Stored("F32", (4, 4))}
    with pytest.raises(ModelError, match=r"not of whole blocks of \[128, 128\]"):
        check_stored(Path("m"), stored, {"quant_method": "fp8"})


def test_experts_of_integers_are_refused_from_their_files() -> None:
    stored = {"model.layers.0.mlp.experts.gate_up_proj": Stored("I8", (4, 8, 8))}
    with pytest.raises(ModelError, match="gate_up_proj is of type I8"):
        check_stored(Path("m"), stored, {})


def test_tensors_of_another_library_are_left_to_it(tmp_path: Path) -> None:
    class Packed(Tensor):
        pass

    layer = torch.nn.Linear(2, 2, bias=False)
    packed = layer.weight.data.double().as_subclass(Packed)
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    check_loaded(tmp_path, torch.nn.Sequential(layer))


def test_scales_of_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    text = SimpleNamespace(num_hidden_layers=2, num_nextn_predict_layers=1)
    names = ["model.layers.2.mlp.up_proj.weight_scale"]
    found = {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": names}
    report.check(tmp_path, found, text)
    text.num_nextn_predict_layers = 0
    with pytest.raises(ModelError, match=r"scales .* not used: model\.layers\.2"):
        report.check(tmp_path, found, text)
