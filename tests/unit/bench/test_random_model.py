from __future__ import annotations

from pathlib import Path

import torch

from bench.random_model import SHAPES, write
from bench.roofline import demand
from tests.inprocess import runner


def test_a_model_of_random_weights_runs(tmp_path: Path) -> None:
    write("tiny", tmp_path)
    assert torch.get_default_dtype() == torch.float32
    assert runner(tmp_path, "auto").loaded.dtype == torch.bfloat16
    shape = SHAPES["tiny"]
    heads = 2 * shape["num_attention_heads"] + 2 * shape["num_key_value_heads"]
    layer = shape["hidden_size"] * (16 * heads + 3 * shape["intermediate_size"])
    weights = shape["num_hidden_layers"] * layer + shape["vocab_size"] * shape["hidden_size"]
    assert demand(tmp_path, "auto").weight_bytes == 2 * weights
