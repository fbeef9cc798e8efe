"""Routers and gates of `transformers` give a row the bits it has alone, as layers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from common.model import kernels
from common.model.hf import layers
from common.model.hf.layers import SteadyTorch, replace_linears, steadily, tiled_experts
from common.model.kv_cache import KvLease
from common.model.linear import TILE_ROWS, in_tiles, linear_maker
from common.model.loader import Dtype
from common.model.segment import Segment
from tests.inprocess import runner
from tests.tiny_models import ARCHITECTURES

ROWS = 256
CHUNKS = (16, 128, ROWS)
CPU = torch.device("cpu")
SIX = dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 6)
"""So few of them that the scores of a row fill no vector."""


class Holder(nn.Module):
    def __init__(self, held: nn.Module) -> None:
        super().__init__()
        self.held = held

    def get_output_embeddings(self) -> None:
        return None


def _chunked(compute: Callable[[Tensor], Sequence[Tensor]], x: Tensor, rows: int) -> list[Tensor]:
    """What is computed of so many rows at a time."""
    parts = zip(*map(compute, x.split(rows)), strict=True)
    return list(map(torch.cat, parts))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("qwen2_moe", "Qwen2MoeTopKRouter"),
        ("mixtral", "MixtralTopKRouter"),
        ("phimoe", "PhimoeTopKRouter"),
        ("gpt_oss", "GptOssTopKRouter"),
        ("deepseek_v3", "DeepseekV3TopkRouter"),
    ],
)
def test_a_router_gives_a_row_the_bits_it_has_alone(
    kind: str, name: str, dtype: torch.dtype
) -> None:
    """At a width where torch sums a row in another order beside others."""
    sizes = {**dict.fromkeys(SIX, 60), "n_group": 1, "topk_group": 1}
    config = AutoConfig.for_model(kind, hidden_size=2048, **sizes)
    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    router = getattr(module, name)(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in router.parameters():
        weight.data.normal_(generator=generator)
    x = torch.randn(ROWS, 2048, generator=generator).to(dtype)
    expected = router(x)[0]
    _, make = linear_maker(CPU, dtype)
    assert replace_linears(Holder(router), CPU, make, make)
    with torch.inference_mode():
        alone = _chunked(router, x, 1)
        for rows in CHUNKS:
            assert all(map(torch.equal, _chunked(router, x, rows), alone))
    assert torch.allclose(alone[0].float(), expected.float(), rtol=2e-2, atol=1.0)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("qwen2_moe", "bfloat16"),
        ("qwen2_moe", "float32"),
        ("glm4_moe", "float32"),
        ("jetmoe", "float32"),
        ("afmoe", "float32"),
    ],
)
def test_a_text_has_the_bits_it_has_token_by_token(
    kind: str, dtype: Dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With routers that take sigmoids, a gate beside them, and experts of no interface."""
    monkeypatch.setattr(kernels, "can_run", lambda model: False)
    sizes: dict[str, Any] = {**ARCHITECTURES["qwen3_moe"], **SIX, "num_hidden_layers": 1}
    sizes |= {"num_dense_layers": 0, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1}
    if kind == "jetmoe":
        sizes["kv_channels"] = 12
    config = AutoConfig.for_model(kind, **sizes)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    target = runner(tmp_path, dtype)
    ids = torch.randint(3, config.vocab_size, (ROWS,)).tolist()
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(ROWS)

    def logits(rows: int) -> Tensor:
        passes = []
        for at in range(0, ROWS, rows):
            segment = Segment(ids[at : at + rows], at, lease.slots, wanted=range(rows))
            passes.append(target.forward([segment]).logits)
        return torch.cat(passes)

    alone = logits(1)
    assert all(torch.equal(logits(rows), alone) for rows in CHUNKS)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, weight: torch.nn.functional.linear(x, weight.T, torch.ones(9)),
        torch.matmul,
        lambda x, weight: x @ weight,
    ],
)
@pytest.mark.parametrize("shape", [(40, 24), (2, 20, 24), (24,), (0, 24)])
def test_products_in_tiles_are_the_products(
    product: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(shape, generator=generator), torch.randn(24, 9, generator=generator)
    with SteadyTorch(TILE_ROWS):
        found = product(x, weight)
    expected = product(x, weight)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, weight: torch.nn.functional.linear(x, weight=weight.T, bias=torch.ones(9)),
        lambda x, weight: torch.nn.functional.linear(weight=weight.T, input=x),
        lambda x, weight: torch.matmul(x, other=weight),
        lambda x, weight: torch.mm(input=x, mat2=weight),
    ],
)
def test_products_by_name_are_in_tiles_too(
    product: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []

    def counted(one: Callable[[Tensor], Tensor], x: Tensor, tile: int) -> Tensor:
        rows.append(len(x))
        return in_tiles(one, x, tile)

    monkeypatch.setattr(layers, "in_tiles", counted)
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(40, 24, generator=generator), torch.randn(24, 9, generator=generator)
    with SteadyTorch(TILE_ROWS):
        found = product(x, weight)
    assert rows == [len(x)]
    assert torch.allclose(found, product(x, weight), atol=1e-5)


@pytest.mark.parametrize("curve", [torch.sigmoid, torch.nn.functional.softplus])
def test_an_element_has_the_bits_it_has_alone(curve: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    whole = steadily(curve, x)
    for count in (1, 6, 60, 999):
        assert torch.equal(torch.cat([steadily(curve, part) for part in x.split(count)]), whole)
    assert torch.allclose(whole, curve(x))


@settings(max_examples=30)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**31))
def test_a_row_has_the_experts_it_chose_and_the_bits_it_has_alone(
    rows: int, count: int, chosen: int, seed: int
) -> None:
    """Some of none: a number beyond the last expert stands for one that is elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(count, 24, 24, generator=generator)
    experts = SimpleNamespace(num_experts=count, has_gate=False, has_bias=False)
    experts.is_transposed, experts.act_fn = False, torch.relu
    experts.up_proj = experts.down_proj = weight
    x, scores = (torch.randn(rows, n, generator=generator) for n in (24, count + 1))
    weights, index = scores.topk(min(chosen, count + 1))
    found = tiled_experts(experts, x, index, weights)
    for row in range(rows):
        one = slice(row, row + 1)
        assert torch.equal(tiled_experts(experts, x[one], index[one], weights[one]), found[one])
        expected = torch.zeros(24)
        for expert, factor in zip(index[row].tolist(), weights[row], strict=True):
            if expert < count:
                expected += factor * (weight[expert] @ torch.relu(weight[expert] @ x[row]))
        assert torch.allclose(found[row], expected, rtol=1e-4, atol=1e-4)
