"""What a row of the compiled decoder sees is its own, and what it makes of it, too."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.loader import Dtype
from common.model.native import Decoder, NativeModel, instructions, model
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner
from tests.unit.common.model.batches import PAGES, segments

pytestmark = pytest.mark.skipif(not instructions(), reason="no compiler or no AVX2 here")

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "two heads a key": ("llama", {}),
    "five": ("llama", {"hidden_size": 80, "num_attention_heads": 10, "head_dim": 32}),
    "twelve": ("llama", {"num_attention_heads": 12, "num_key_value_heads": 1, "head_dim": 40}),
    "wide": ("llama", {"num_attention_heads": 6, "head_dim": 80}),
    "window, sinks": ("gpt_oss", {"num_attention_heads": 8}),
}


WAYS = ["bfloat16", "float32", *(["bfloat16 by tiles"] if instructions() == "amx" else [])]


@cache
def _target(vectors: str, shape: str, way: str, threads: int) -> Runner:
    kind, sizes = SHAPES[shape]
    dtype: Dtype = "float32" if way == "float32" else "bfloat16"

    def decoder(_: int, most_threads: int, *, dtype: torch.dtype) -> Decoder:
        return Decoder(threads, most_threads, dtype=dtype, tiles="tiles" in way)

    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "Decoder", decoder)
        found = runner(tiny_models.save(kind, Path(directory), **sizes), dtype, kv_bytes=9 << 20)
        assert found.pool.blocks.count >= PAGES
        return found


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
@given(batch=segments(), seed=st.integers(0, 9))
@settings(max_examples=25)
def test_a_row_has_the_bits_it_has_alone(
    vectors: str, shape: str, way: str, threads: int, batch: list[Segment], seed: int
) -> None:
    """In chains, in trees, beside texts that begin alike, and beside others on threads of their
    own; nothing else is read."""
    target = _target(vectors, shape, way, threads)
    assert isinstance(target.loaded.forward, NativeModel)
    generator = torch.Generator().manual_seed(seed)
    for layer in target.pool.layers:
        layer.fill_(float("nan"))
        for part in batch:
            known = torch.from_numpy(part.slots[: part.start])
            keys = torch.randn(len(known), *layer.shape[1:], generator=generator)
            layer[known] = keys.to(layer.dtype)
    _fill_paths(target, batch, generator)
    together = iter(target.forward(batch).logits.clone())
    for part in batch:
        alone = {
            row: _alone(target, part.ids[row], part.run_table(run)[: part.run_start(run) + at + 1])
            for run in part.runs
            for at, row in enumerate(run)
        }
        for row in part.wanted:
            logits = next(together)
            assert torch.equal(logits, alone[row])
            assert logits.isfinite().all()


def _fill_paths(target: Runner, batch: list[Segment], generator: torch.Generator) -> None:
    """Gives what stands between committed tokens and a row keys and values, where no row does."""
    written = {int(slot) for part in batch for slot in part.row_slots}
    for part in batch:
        for run in part.runs:
            for slot in part.run_table(run)[part.start :]:
                if int(slot) not in written:
                    written.add(int(slot))
                    for layer in target.pool.layers:
                        keys = torch.randn(layer.shape[1:], generator=generator)
                        layer[int(slot)] = keys.to(layer.dtype)


def _alone(target: Runner, token: int, table: np.ndarray) -> torch.Tensor:
    """Logits of one token, which sees what stands in the slots of a table. # [V]"""
    table = np.ascontiguousarray(table)
    return target.forward([Segment([token], len(table) - 1, table, wanted=[0])]).logits[0].clone()
