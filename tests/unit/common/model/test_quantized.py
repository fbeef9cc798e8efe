"""Linear layers with int8 weights: exact integers, bounded errors, rows by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.errors import ModelError
from common.model import quantized
from common.model.kv_cache import KvLease
from common.model.linear import as_layer
from common.model.quantized import (
    IntegerProduct,
    WidenedLinear,
    integer_products,
    round_weight,
)
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner
from tests.tiny_models import ARCHITECTURES

SHAPES = [(96, 320), (33, 7), (199, 48), (64, 2048)]
"""Outputs and inputs."""

with_integers = pytest.mark.skipif(not integer_products(), reason="no exact 8-bit products here")


def _matrices(outputs: int, inputs: int, rows: int = 21) -> tuple[Tensor, Tensor, Tensor]:
    """A weight, a bias, and inputs of different sizes; one row is zero."""
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(rows, inputs, generator=generator) * torch.rand(rows, 1, generator=generator)
    x[3] = 0
    return weight, torch.randn(outputs, generator=generator), x


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("at_a_time", [1, 1000])
def test_outputs_are_rounded_by_themselves(
    at_a_time: int, outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that some of a large matrix can be, and then the next."""
    weight, *_ = _matrices(outputs, inputs)
    whole = round_weight(weight)
    monkeypatch.setattr(quantized, "_AT_A_TIME", at_a_time)
    for part, expected in zip(round_weight(weight), whole, strict=True):
        assert torch.equal(part, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_any_type_are_rounded_as_float32(dtype: torch.dtype) -> None:
    """Scales, too: that of a row of zeros is less than float16 can tell from none."""
    weight, *_ = _matrices(96, 320)
    weight[5] = 0
    narrow = weight.to(dtype)
    for part, expected in zip(round_weight(narrow), round_weight(narrow.float()), strict=True):
        assert torch.equal(part, expected)


@with_integers
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_product_is_that_of_the_rounded_integers(
    outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    weight, bias, x = _matrices(outputs, inputs)
    x = x.to(dtype)
    rounded, scales = round_weight(weight)
    scale = x.float().abs().amax(1, keepdim=True).clamp_min(1e-30) * (1 / 127)
    integers = (x / scale + 128.5).to(torch.uint8).long() - 128
    expected = (integers @ rounded.long().T).float() * scales * scale
    assert torch.equal(IntegerProduct(weight, None)(x), expected.to(dtype))
    assert torch.equal(IntegerProduct(weight, bias)(x), (expected + bias).to(dtype))
    other = torch.randn(len(x), outputs).to(dtype)
    added = IntegerProduct(weight, bias).plus(x, other)
    assert torch.equal(added, (expected + bias + other).to(dtype))


@with_integers
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_has_its_bits_in_any_number_of_rows(outputs: int, inputs: int) -> None:
    weight, bias, x = _matrices(outputs, inputs, rows=70)
    layer = as_layer(IntegerProduct)(weight, bias)
    whole = layer(x)
    for start, end in ((0, 1), (3, 4), (1, 9), (5, 21), (0, 64), (69, 70)):
        assert torch.equal(layer(x[start:end]), whole[start:end])
    x[7] = float("nan")
    assert torch.equal(layer(x)[8:], whole[8:]), "a broken row harms no other"


@with_integers
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_errors_are_those_of_rounding_to_nearest(outputs: int, inputs: int) -> None:
    """Half a step of the weights for each input, half a step of the inputs for each weight."""
    weight, bias, x = _matrices(outputs, inputs)
    exact = x.double() @ weight.double().T + bias
    weight_step = weight.abs().amax(1) / 127
    input_step = x.abs().amax(1, keepdim=True) / 127
    bound = (
        x.abs().sum(1, keepdim=True) * weight_step / 2
        + input_step / 2 * weight.abs().sum(1)
        + inputs * input_step * weight_step / 4
    )
    error = (IntegerProduct(weight, bias)(x) - exact).abs()
    assert (error <= bound * 1.001 + 1e-5).all()
    typical = (error.square().sum() / (exact - bias).square().sum()).sqrt()
    assert typical < 0.015


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_widened_weights_round_the_weights_only(outputs: int, inputs: int) -> None:
    weight, bias, x = _matrices(outputs, inputs)
    layer = WidenedLinear(weight, bias, 16)
    exact = x.double() @ weight.double().T + bias
    bound = x.abs().sum(1, keepdim=True) * (weight.abs().amax(1) / 127) / 2
    assert ((layer(x) - exact).abs() <= bound * 1.001 + 1e-4).all()
    assert torch.equal(layer(x)[:1], layer(x[:1]))
    assert layer(x.bfloat16()[None]).shape == (1, len(x), outputs)


def _logits(target: Runner) -> Tensor:
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(40)
    ids = torch.randint(3, 190, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    logits = target.forward([Segment(ids, 0, lease.slots, wanted=range(40))]).logits
    lease.release()
    return logits.float()


EXPERTS = {kind for kind, sizes in ARCHITECTURES.items() if "num_experts_per_tok" in sizes}


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES.keys() - EXPERTS))
def test_every_architecture_keeps_its_logits_but_for_rounding(kind: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path)
    whole, rounded = runner(directory), runner(directory, quantize="int8")
    assert rounded.fingerprint != whole.fingerprint
    expected = _logits(whole)
    assert (_logits(rounded) - expected).norm() < 0.2 * expected.norm()


@pytest.mark.parametrize("kind", sorted(EXPERTS))
def test_experts_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path)
    with pytest.raises(ModelError, match=r"CausalLM.* experts .*quantize: must be none"):
        runner(directory, quantize="int8")
