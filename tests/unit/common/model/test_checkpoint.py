"""What is read from the files of a model is what `transformers` builds of them, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from common.model import hf, loader
from common.model.checkpoint import Unknown, read
from common.model.hf import HfModel
from common.model.llama import Llama, Mixture
from common.model.loader import load
from tests import tiny_models
from tests.inprocess import Pair, runner

CPU = torch.device("cpu")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
BETAS = {"beta_fast": 20.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.1}
SCALES = {"mscale": 1.0, "mscale_all_dim": 0.7}
NO_BETAS = {"beta_fast": None, "beta_slow": 0, "mscale": 2.0}
OLD_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
WINDOWS = {"use_sliding_window": True, "sliding_window": 40}

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "eos_token_id": [2, 5]}),
    ("llama", {"head_dim": 16, "num_key_value_heads": 4}),
    ("llama", {"rope_parameters": LLAMA3, "head_dim": 64}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
    ("llama", {"rope_parameters": {**YARN, **BETAS}, "head_dim": 64}),
    ("qwen3", {"rope_parameters": YARN, "head_dim": 128}),
    ("qwen3", {"rope_parameters": {**YARN, **SCALES, "type": "linear"}}),
    ("qwen3", {"rope_parameters": {**YARN, **NO_BETAS}, "head_dim": 128}),
    ("qwen3", {"rope_parameters": {**YARN, "original_max_position_embeddings": 7, "factor": 0.5}}),
    ("qwen3", {"rope_parameters": {**YARN, "original_max_position_embeddings": 6}}),
    ("mistral", {}),
    ("mistral", {"sliding_window": None, "head_dim": 24}),
    ("phi3", {}),
    (
        "phi3",
        {"sliding_window": None, "attention_bias": True, "original_max_position_embeddings": 64},
    ),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": False, "layer_types": None}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, **WINDOWS, "layer_types": ["sliding_attention"] * 2}),
    ("mixtral", {}),
    ("mixtral", {"sliding_window": 40, "num_experts_per_tok": 1, "router_jitter_noise": 0.5}),
    ("olmoe", {}),
    ("olmoe", {"attention_bias": True, "norm_topk_prob": True, "num_experts_per_tok": 4}),
    ("qwen2_moe", {}),
    ("qwen2_moe", {"qkv_bias": False, "norm_topk_prob": True, "mlp_only_layers": [0]}),
    ("qwen2_moe", {"use_sliding_window": False, "layer_types": None, "mlp_only_layers": [0, 1]}),
    ("qwen3_moe", {}),
    ("qwen3_moe", {"attention_bias": True, "norm_topk_prob": True, "decoder_sparse_step": 2}),
    ("qwen3_moe", {**WINDOWS, "max_window_layers": 1, "mlp_only_layers": [1]}),
]

Change = Callable[[Path, dict[str, Any]], None]


def _read(directory: Path, dtype: torch.dtype | None = None) -> Llama:
    config = json.loads((directory / "config.json").read_text())
    return read(directory, config, dtype, CPU)


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mixture) and isinstance(other, Mixture):
        return not _differ(one, other)
    return one == other


def _differ(one: Any, other: Any) -> list[str]:
    names = {field.name for field in fields(one)} - {"facts", "layers"}
    return [name for name in names if not _same(getattr(one, name), getattr(other, name))]


def _assert_like_transformers(directory: Path, dtype: torch.dtype | None = None) -> None:
    mine, theirs = _read(directory, dtype), HfModel(directory, dtype, CPU).llama()
    assert theirs is not None
    assert not _differ(mine, theirs)
    assert not _differ(mine.facts, theirs.facts)
    for one, other in zip(mine.layers, theirs.layers, strict=True):
        assert not _differ(one, other)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "changes"), MODELS, ids=str)
def test_it_is_what_transformers_builds(
    kind: str, changes: dict[str, Any], dtype: torch.dtype | None, tmp_path: Path
) -> None:
    _assert_like_transformers(tiny_models.save(kind, tmp_path, **changes), dtype)


@pytest.mark.parametrize(
    ("configured", "ends"), [(-1, ()), ([-1, 2], (2,)), ([2, tiny_models.VOCAB], (2,))]
)
def test_ids_that_the_model_does_not_have_end_nothing(
    configured: object, ends: tuple[int, ...], tmp_path: Path
) -> None:
    directory = tiny_models.save("llama", tmp_path)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": configured}))
    for facts in (_read(directory).facts, HfModel(directory, None, CPU).facts):
        assert facts.eos_token_ids == ends


def test_files_of_several_parts_and_of_older_days(tmp_path: Path) -> None:
    """Parts, settings of rotary embeddings as they once were written, and a tensor too many."""
    directory = tiny_models.save("llama", tmp_path, rope_parameters=LLAMA3, head_dim=64)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, inside in parts.items():
        held = {name: tensors[name] for name in inside}
        if file < "b":  # one that stands in both: the last counts
            held[names[1]] = torch.zeros_like(tensors[names[1]])
        save_file(held, directory / file, {"format": "pt"})
    where = {name: file for file, inside in parts.items() for name in inside}
    index = {"metadata": {}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "model.safetensors").unlink()
    (directory / "generation_config.json").unlink()
    config = json.loads((directory / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    (directory / "config.json").write_text(json.dumps(config))
    _assert_like_transformers(directory)


def test_one_file_goes_before_the_list_of_several(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone"}}')
    _assert_like_transformers(directory)


def test_bundled_models_and_experts_need_no_transformers(
    demo_target: Path, demo_draft: Path, tmp_path: Path
) -> None:
    """To import it takes longer than all else that a worker does before it serves."""
    paths = [demo_target, demo_draft, tiny_models.save("qwen3_moe", tmp_path)]
    code = (
        "import sys; from common.model.loader import load\n"
        "for path in sys.argv[1:]: load(path, device='cpu')\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, *paths], check=True)


def _setting(**settings: Any) -> Change:
    def change(directory: Path, config: dict[str, Any]) -> None:
        config.update(settings)

    return change


def _without(name: str) -> Change:
    def change(directory: Path, config: dict[str, Any]) -> None:
        del config[name]

    return change


def _second_output_layer(directory: Path, config: dict[str, Any]) -> None:
    config["tie_word_embeddings"] = True


def _tensor_of_other_shape(directory: Path, config: dict[str, Any]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(95, 48)
    save_file(tensors, file)


def _tensor_more(name: str) -> Change:
    def change(directory: Path, config: dict[str, Any]) -> None:
        file = directory / "model.safetensors"
        save_file({**load_file(file), name: torch.ones(3)}, file)

    return change


def _cut_short(directory: Path, config: dict[str, Any]) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def _part_elsewhere(directory: Path, config: dict[str, Any]) -> None:
    (directory / "model.safetensors").rename(directory.parent / "elsewhere.safetensors")
    tensors = load_file(directory.parent / "elsewhere.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "../elsewhere.safetensors")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _generation(text: str) -> Change:
    def change(directory: Path, config: dict[str, Any]) -> None:
        (directory / "generation_config.json").write_text(text)

    return change


def _no_end(directory: Path, config: dict[str, Any]) -> None:
    """Another is assumed by default."""
    (directory / "generation_config.json").unlink()
    del config["eos_token_id"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_setting(something_new=1), "settings something_new"),
        (_setting(quantization_config={"quant_method": "awq"}), "settings quantization_config"),
        (_setting(hidden_act="gelu"), "hidden_act"),
        (_setting(head_dim=13), "head_dim"),
        (_setting(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}), "yarn"),
        (_setting(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}), "partial"),
        (_setting(rope_parameters={**LLAMA3, "low_freq_factor": 0}), "ZeroDivisionError"),
        (_setting(rope_parameters={"rope_type": None, "rope_theta": 1e4}), "type None"),
        (
            _setting(architectures=["LlamaForSequenceClassification"]),
            "architecture LlamaForSequenceClassification is not read here",
        ),
        (_setting(architectures=["MistralForCausalLM"]), "model_type"),
        (_setting(num_hidden_layers=3), r"KeyError: 'model\.layers\.2"),
        (_setting(num_key_value_heads=3), "num_key_value_heads"),
        (_setting(vocab_size=0), "0 where a count is expected"),
        (_setting(attention_bias=True), r"self_attn\.q_proj\.bias"),
        (_setting(attention_bias=None), "attention_bias"),
        (_setting(tie_word_embeddings="false"), "tie_word_embeddings"),
        (_without("num_key_value_heads"), "num_key_value_heads"),
        (_without("tie_word_embeddings"), "tie_word_embeddings"),
        (_without("dtype"), "dtype"),
        (_no_end, "eos_token_id"),
        (_generation("[]"), "AttributeError"),
        (_generation("{"), "JSONDecodeError"),
        (_second_output_layer, "lm_head.weight beside tie_word_embeddings"),
        (_tensor_of_other_shape, r"shape or type of model\.layers\.1\.mlp\.up_proj"),
        (_tensor_more("model.layers.0.mlp.up_proj.weight_scale"), "tensor .*weight_scale"),
        (_tensor_more("layers.0.input_layernorm.weight"), r"tensor layers\.0\.input_layernorm"),
        (_cut_short, "Safetensor"),
        (_part_elsewhere, "elsewhere"),
    ],
)
def test_what_is_not_known_is_left_to_transformers(
    change: Change, reason: str, tmp_path: Path
) -> None:
    _assert_left("llama", change, reason, tmp_path)


def _assert_left(kind: str, change: Change, reason: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    read(directory, config, None, CPU)
    change(directory, config)
    with pytest.raises(Unknown, match=reason):
        read(directory, config, None, CPU)


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("mixtral", _setting(num_local_experts=5), r"shape or type of .*gate"),
        ("mixtral", _tensor_more("model.layers.0.block_sparse_moe.experts.4.w1.weight"), "tensor"),
        ("mixtral", _setting(num_local_experts=0), "0 where a count is expected"),
        ("mixtral", _setting(num_experts=4), "num_experts or num_local_experts"),
        ("mixtral", _without("num_local_experts"), "num_experts or num_local_experts"),
        ("mixtral", _setting(norm_topk_prob=False), "settings norm_topk_prob"),
        ("olmoe", _setting(clip_qkv=1.0), "clip_qkv"),
        ("olmoe", _setting(sliding_window=40), "settings sliding_window"),
        ("phi3", _setting(rope_parameters=LLAMA3), "rope_type"),
        ("qwen2_moe", _setting(num_experts_per_tok=5), "num_experts_per_tok"),
        ("qwen2_moe", _setting(shared_expert_intermediate_size=30), "shape or type of .*shared"),
        ("qwen2_moe", _setting(num_local_experts=4), "settings num_local_experts"),
        ("qwen2_moe", _setting(use_sliding_window=False), "layer_types"),
        ("qwen3_moe", _setting(moe_intermediate_size=31), "moe_intermediate_size"),
        ("qwen3_moe", _setting(decoder_sparse_step=2), r"layers\.0\.mlp\.experts"),
        ("qwen3_moe", _setting(mlp_only_layers="0"), "mlp_only_layers"),
        ("qwen3_moe", _setting(layer_types=["full_attention"] * 2), "settings layer_types"),
        ("qwen3_moe", _without("norm_topk_prob"), "norm_topk_prob"),
        ("qwen3_moe", _without("head_dim"), "head_dim"),
    ],
)
def test_what_is_not_known_of_other_kinds_is_left_to_transformers(
    kind: str, change: Change, reason: str, tmp_path: Path
) -> None:
    _assert_left(kind, change, reason, tmp_path)


def test_settings_as_published_files_have_them(tmp_path: Path) -> None:
    """Which differ from those that `transformers` writes: of Qwen's experts, and of its longest
    texts; a window that is not in use is a number."""
    directory = tiny_models.save("qwen3_moe", tmp_path)
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config["num_experts"] = config.pop("num_local_experts")
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    published = {"rope_scaling": OLD_YARN, "use_sliding_window": False, "sliding_window": 40}
    file.write_text(json.dumps(config | published))
    _assert_like_transformers(directory)


def test_what_was_read_is_let_go_before_it_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none of our kernels runs it: a large model does not fit twice."""
    directory = tiny_models.save("llama", tmp_path)
    read_before: list[weakref.ref[Llama]] = []
    monkeypatch.setattr(
        loader, "prepare", lambda llama, **_: read_before.append(weakref.ref(llama))
    )

    class Again(HfModel):
        def __init__(self, *args: Any, **options: Any) -> None:
            assert [one() for one in read_before] == [None]
            super().__init__(*args, **options)

    monkeypatch.setattr(hf, "HfModel", Again)
    assert load(str(directory), device="cpu").parameters > 0


def test_layers_of_other_kinds_are_not_known(tmp_path: Path) -> None:
    directory = tiny_models.save("qwen3", tmp_path)
    config = json.loads((directory / "config.json").read_text())
    with pytest.raises(Unknown, match="layer_types"):
        read(directory, config | {"layer_types": ["linear_attention"] * 2}, None, CPU)


def test_the_same_kernels_run_what_transformers_had_to_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And write the same text: a setting that nobody knows costs a slow start and no more."""
    directory = tiny_models.save("qwen3", tmp_path)
    plain = load(str(directory), device="cpu")
    prompt = list(range(3, 40))
    text = Pair.make(runner(directory)).generate(prompt, 12)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"something_new": 1}))
    caplog.set_level("INFO")
    other = load(str(directory), device="cpu")
    (said,) = (record.__dict__ for record in caplog.records if "transformers" in record.message)
    assert said["reason"] == "settings something_new"
    assert (other.kernels, other.parameters) == (plain.kernels, plain.parameters)
    assert other.fingerprint != plain.fingerprint, "it is another configuration"
    assert Pair.make(runner(directory)).generate(prompt, 12) == text
    reference = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager")
    out = reference.generate(torch.tensor([prompt]), max_new_tokens=12, eos_token_id=None)
    assert out[0, len(prompt) :].tolist() == text
