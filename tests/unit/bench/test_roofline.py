from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bench import step_times
from bench.machine import Limits, best
from bench.roofline import Demand, Roofline, demand, measure, to_json
from common.errors import ModelError
from tests import tiny_models
from tests.inprocess import runner

LIMITS = Limits(bytes_per_s=1e10, operations_per_s=1e11)


def test_the_bundled_target_reads_its_weights_once_a_step(demo_target: Path) -> None:
    """12 layers of 320, heads 10 and 2 of 32, 864 inside, a vocabulary of 4096 that is tied."""
    found = demand(demo_target, "auto")
    layer = 320 * (320 + 2 * 64 + 320) + 3 * 320 * 864
    assert found.dtype == "bfloat16"
    assert found.weight_bytes == 2 * (12 * layer + 4096 * 320)
    assert found.kv_bytes_per_position == 2 * 12 * 2 * 32 * 2
    assert found.operations_per_row == 2 * (12 * layer + 4096 * 320)
    assert demand(demo_target, "float32").weight_bytes == 2 * found.weight_bytes


def test_an_embedding_that_is_looked_up_is_not_read(tmp_path: Path) -> None:
    matrix = np.zeros((10, 4), dtype=np.float32)
    save_file(
        {"model.embed_tokens.weight": matrix, "lm_head.weight": matrix, "norm": matrix[0]},
        tmp_path / "model.safetensors",
    )
    config = {"n_layer": 1, "n_head": 2, "n_embd": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = demand(tmp_path, "auto")
    assert found.weight_bytes == 40 * 4
    assert found.kv_bytes_per_position == 2 * 1 * 2 * 2 * 4


@pytest.mark.parametrize(
    ("names", "says", "counted"),
    [
        (("gpt_neox.embed_in", "embed_out"), {}, 1),
        (("model.embed_tokens", "lm_head"), {"tie_word_embeddings": True}, 1),
        (("model.embed_tokens",), {"tie_word_embeddings": False}, 1),  # for want of another
        (("lm_head",), {"tie_word_embeddings": True}, 1),
        (("transformer.wte", "transformer.wpe", "transformer.h.0.attn.c_attn"), {}, 2),
        (("model.embed_tokens", "model.layers.0.mlp.up_proj", "lm_head"), {}, 2),
    ],
)
def test_what_a_row_is_multiplied_by_counts(
    names: tuple[str, ...], says: dict[str, bool], counted: int, tmp_path: Path
) -> None:
    matrix = np.zeros((10, 4), dtype=np.float32)
    mask = {"transformer.h.0.attn.bias": np.zeros((1, 1, 64, 64), dtype=np.float32)}
    weights = {f"{name}.weight": matrix for name in names} | mask
    save_file(weights, tmp_path / "model.safetensors")
    config = {"n_layer": 1, "n_head": 2, "n_embd": 4} | says
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert demand(tmp_path, "auto").operations_per_row == 2 * counted * 40


@pytest.mark.parametrize(
    ("count", "weights"),
    [
        ("num_experts", {f"layers.0.mlp.experts.{i}.up_proj.weight": (6, 5) for i in range(8)}),
        ("num_local_experts", {"layers.0.mlp.experts.gate_up_proj": (8, 6, 5)}),
    ],
)
def test_of_experts_those_are_read_that_rows_take(
    count: str, weights: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    """A quarter by one row, and by two the more the less they choose the same."""
    shapes = {**weights, "layers.0.mlp.shared_experts.up_proj.weight": (3, 5)}
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"n_layer": 1, "n_head": 1, "n_embd": 5, count: 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = demand(tmp_path, "auto")
    assert (found.weight_bytes, found.expert_bytes) == (4 * 15, 4 * 240)
    assert found.kept_bytes == 4 * 255
    assert found.operations_per_row == 2 * (15 + 60)
    assert [found.moved_bytes(rows) - 40 * rows for rows in (1, 2, 1000)] == [300, 480, 1020]


def test_embeddings_of_layers_are_looked_up_and_shared_keys_are_kept_once(tmp_path: Path) -> None:
    """Gemma 4's: of four layers two keep keys, of 16 numbers, and where all is seen of 32."""
    tensors = load_file(tiny_models.save("gemma4_text", tmp_path) / "model.safetensors")
    looked_up = ["model.embed_tokens_per_layer.weight", "model.embed_tokens.weight"]
    looked_up = looked_up if "lm_head.weight" in tensors else looked_up[:1]
    matrices = sum(each.size for each in tensors.values() if each.ndim == 2)
    found = demand(tmp_path, "auto")
    assert found.weight_bytes == 4 * (matrices - sum(tensors[name].size for name in looked_up))
    assert found.kv_bytes_per_position == 4 * 2 * 2 * (16 + 32)


def test_what_is_no_matrix_is_refused(tmp_path: Path) -> None:
    save_file({"conv": np.zeros((2, 4, 4), dtype=np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="neither a matrix nor those of experts"):
        demand(tmp_path, "auto")


def test_a_directory_without_weights_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no safetensors weights"):
        demand(tmp_path, "auto")


def test_a_config_that_does_not_say_is_an_error(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 2), dtype=np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="num_hidden_layers or n_layer"):
        demand(tmp_path, "auto")


def test_few_rows_are_bound_by_memory_and_many_by_arithmetic() -> None:
    needs = Demand(
        dtype="bfloat16", weight_bytes=10**7, kv_bytes_per_position=0, operations_per_row=10**7
    )
    assert needs.floor_s(1, LIMITS) == pytest.approx(1e-3)
    assert needs.floor_s(10, LIMITS) == pytest.approx(1e-3)
    assert needs.floor_s(100, LIMITS) == pytest.approx(1e-2)
    found = Roofline(
        model="models/target",
        threads=1,
        demand=needs,
        memory_one_thread=LIMITS,
        memory=LIMITS,
        limits=LIMITS,
        steps=[(1, 0.002), (100, 0.010)],
        in_one_call=0.00125,
    )
    assert found.reached(1, 0.002) == pytest.approx(0.5)
    text = found.cells().markdown()
    assert "| 1 | 10.0 | 0.010 | 1.00 | 2.00 | 50 % |" in text
    assert "| 1, in one call | 10.0 | 0.010 | 1.00 | 1.25 | 80 % |" in text
    assert "| 100 | 10.0 | 1.000 | 10.00 | 10.00 | 100 % |" in text
    assert "10.0 GB/s" in found.about()
    assert json.loads(to_json([found]))[0]["demand"]["weight_bytes"] == 10**7


def test_passes_of_one_call_are_timed_each(tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16")
    if not target.rolls:
        pytest.skip("one pass a call")
    assert 0 < step_times._in_one_call(target) < 1
    assert target.pool.blocks.held == 0


def test_a_model_is_measured_by_programs_of_their_own(tmp_path: Path) -> None:
    found = measure(str(tiny_models.save("llama", tmp_path)), "float32", 1)
    assert 0 < found.steps[0][1] < 1
    assert all(found.reached(rows, seconds) > 0 for rows, seconds in found.steps)
    assert "threads: 1" in found.cells().markdown()


def test_the_best_of_several_calls_counts() -> None:
    calls = []
    assert best(lambda: calls.append(1)) >= 0
    assert len(calls) > 7
