"""What a worker tries before it uses the kernels: a fault is told, and not raised."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from common.model import kernels
from common.model.cuda import reference
from common.model.cuda.keys import Size, section
from common.model.hf import HfModel
from common.model.llama import Curve, Gate
from common.model.quantized import Quantize
from tests import tiny_models

pytest.importorskip("triton")

from common.model.cuda import grouped, probe
from common.model.cuda.attention import Attention
from common.model.cuda.probe import Shape
from common.model.cuda.rowwise import known_of

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [Shape(4, 2, 16, 48), Shape(32, 8, 128, 64), Shape(14, 2, 64, 64)]

OSS = Shape(
    4,
    2,
    16,
    48,
    experts=True,
    sinks=True,
    gate=Gate(Curve.CLAMPED, 1.702, 7.0),
    grows=True,
    softcap=50.0,
    norms_values=True,
    shares=True,
    tile_rows=4,
)

MANY = {"num_attention_heads": 48, "head_dim": 4}

Attend = Callable[..., Tensor]


def _faulty(change: Callable[[Tensor, Tensor, Size], Tensor]) -> Attend:
    """Attention that torch does, on a changed batch."""

    def attend(
        self: Attention, queries: Tensor, cache: Tensor, words: Tensor, size: Size, page: int
    ) -> Tensor:
        scale = queries.shape[2] ** -0.5
        out = reference.attend(queries, cache, words, size, page, scale=scale)
        return change(out, words, size).to(queries.dtype)

    return attend


def _tree_rows_are_zero(out: Tensor, words: Tensor, size: Size) -> Tensor:
    out[section(words, size, "positions") > 1000] = 0
    return out


def _paths_are_the_first(out: Tensor, words: Tensor, size: Size) -> Tensor:
    """Rows of other paths attend to what the first path's row of their position does."""
    at = section(words, size, "positions").tolist()
    return torch.stack([out[at.index(position)] for position in at])


def _rows_add_up(out: Tensor, words: Tensor, size: Size) -> Tensor:
    """By less than a rounding, and otherwise in a tree than alone."""
    return out * (1 + 2**-8 * (size.rows > 4))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_attention_is_told_from_other_attention(
    shape: Shape, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(change: Callable[[Tensor, Tensor, Size], Tensor]) -> str:
        monkeypatch.setattr(Attention, "__call__", _faulty(change))
        return probe._of_attention(shape, dtype, CPU)

    assert fault(lambda out, words, size: out) == ""
    assert fault(_tree_rows_are_zero).startswith("attention is off by ")
    assert fault(_paths_are_the_first).startswith("attention is off by ")
    if dtype == torch.bfloat16:
        assert fault(_rows_add_up) == "rows influence each other"


@pytest.mark.parametrize(
    ("shape", "dtype"), [(SHAPES[0]._replace(experts=True), torch.bfloat16), (OSS, torch.float32)]
)
def test_kernels_pass(shape: Shape, dtype: torch.dtype) -> None:
    assert probe.fault(shape, dtype, DEVICE) == ""


def test_sinks_caps_and_limits_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "__call__", _faulty(lambda out, words, size: out))
    capped = probe._of_attention(SHAPES[0]._replace(softcap=5.0), torch.bfloat16, DEVICE)
    assert capped.startswith("attention is off by ")
    assert probe._of_attention(OSS, torch.bfloat16, DEVICE).startswith("attention is off by ")
    monkeypatch.setattr(grouped, "known_of", lambda gate: known_of(Gate()))
    assert probe._of_experts(OSS, torch.bfloat16, DEVICE).startswith("a mixture of experts is off")


@pytest.mark.parametrize("name", ["RmsNorm", "Turn", "gated", "RoundedProduct", "Experts"])
def test_each_kernel_is_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nSet CC")

    monkeypatch.setattr(Attention, "__call__", _faulty(lambda out, words, size: out))
    monkeypatch.setattr(probe, name, missing)
    fault = probe.fault(SHAPES[0]._replace(experts=True), torch.float32, DEVICE)
    assert fault == "RuntimeError: Failed to find C compiler."


@pytest.mark.parametrize(
    ("changes", "capability", "found", "reason"),
    [
        ({}, (9, 0), "", ""),
        ({}, (7, 5), "", "its compute capability is below 8.0"),
        ({}, (9, 0), "norm is off by 1", "norm is off by 1"),
        (MANY, (9, 0), "", "48 heads share 2 of keys: at most 16 can share one"),
    ],
)
def test_where_kernels_are_left_out_the_log_says_why(
    changes: dict[str, Any],
    capability: tuple[int, int],
    found: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = HfModel(tiny_models.save("llama", tmp_path, **changes), None, CPU).llama()
    assert model is not None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    tried: list[Shape] = []
    monkeypatch.setattr(probe, "fault", lambda shape, dtype, device: tried.append(shape) or found)
    assert kernels._cuda_runs(model, CPU, "none") is not bool(reason)
    assert [record.__dict__["reason"] for record in caplog.records] == [reason] * bool(reason)
    of_all = Shape(4, 2, 12, 48, tile_rows=8)
    assert tried == [of_all] * (reason == found), "tried where nothing else is wrong"


def test_products_of_each_rounding_have_a_name() -> None:
    """And rows enough for their kernels."""
    from common.model.cuda.products import PRODUCTS

    assert set(PRODUCTS) == set(Quantize.__args__)
    assert all(one.row_step % 16 == 0 for one in PRODUCTS.values())
