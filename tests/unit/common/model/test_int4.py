"""Linear layers with int4 weights: bounded errors, rows by themselves, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.errors import ModelError
from common.model.int4 import Int4Product, _check_device, group_inputs, round_groups
from common.model.kv_cache import KvLease
from common.model.linear import as_layer
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner

SHAPES = [(96, 320), (64, 2048), (112, 96), (16, 32)]
"""Outputs and inputs."""

WIDE = {"hidden_size": 64, "n_embd": 64, "intermediate_size": 96}
"""Sizes of a tiny model whose layers can be rounded."""


def _matrices(outputs: int, inputs: int, rows: int = 21) -> tuple[Tensor, Tensor, Tensor]:
    """A weight, a bias and inputs; one group of weights is all alike."""
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    weight[3, :128] = 0.25
    x = torch.randn(rows, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    return weight.bfloat16(), bias.bfloat16(), x.bfloat16()


def _restored(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded weights, and each one's step."""
    outputs, inputs = weight.shape
    group = group_inputs(outputs, inputs)
    assert group is not None
    steps, scale, zero = round_groups(weight, group)
    assert steps.min() >= 0
    assert steps.max() <= 15
    wide, shift = (each.float().repeat_interleave(group, dim=1) for each in (scale, zero))
    return (steps - 8) * wide + shift, wide


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_weights_are_within_half_a_step(outputs: int, inputs: int) -> None:
    """And a little, for scale and zero are rounded, too."""
    weight, *_ = _matrices(outputs, inputs)
    restored, step = _restored(weight)
    assert ((restored - weight).abs() <= 0.5 * step + 2**-7 * weight.abs().max()).all()
    assert (restored[3, : min(128, inputs)] - 0.25).abs().max() < 2**-8, "a group that is all alike"


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_product_is_that_of_the_rounded_weights(outputs: int, inputs: int) -> None:
    weight, bias, x = _matrices(outputs, inputs)
    restored, _ = _restored(weight)
    expected = x.float() @ restored.T
    most = 2 * torch.finfo(torch.bfloat16).eps * (x.float().abs() @ restored.abs().T).max()
    assert (Int4Product(weight, None)(x).float() - expected).abs().max() <= most
    product = Int4Product(weight, bias)
    assert torch.equal(product(x), Int4Product(weight, None)(x) + bias)
    other = torch.randn(len(x), outputs).bfloat16()
    assert torch.equal(product.plus(x, other), product(x) + other)
    assert torch.equal(as_layer(Int4Product)(weight, bias)(x[None]), product(x)[None])


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_has_its_bits_in_any_number_of_rows(outputs: int, inputs: int) -> None:
    weight, bias, x = _matrices(outputs, inputs, rows=70)
    product = Int4Product(weight, bias)
    whole = product(x)
    for start, end in ((0, 1), (3, 4), (1, 9), (5, 21), (0, 64), (69, 70)):
        assert torch.equal(product(x[start:end]), whole[start:end])


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "qwen3"])
def test_models_keep_their_logits_but_for_rounding(kind: str, tmp_path: Path) -> None:
    directory = tiny_models.save(kind, tmp_path, **WIDE)
    whole = runner(directory, "bfloat16")
    rounded = runner(directory, "bfloat16", quantize="int4")
    assert rounded.loaded.kernels.endswith("-int4")
    assert rounded.fingerprint != whole.fingerprint
    expected = _logits(whole)
    error = (_logits(rounded) - expected).norm() / expected.norm()
    assert 0.01 < error < 0.5


def _logits(target: Runner) -> Tensor:
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(20)
    segment = Segment(range(20, 40), 0, lease.slots, wanted=range(20))
    return target.forward([segment]).logits.float()


def test_widths_that_cannot_be_rounded_are_named(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path)
    with pytest.raises(ModelError, match=r"48 inputs and \d+ outputs .* multiple of 32, outputs"):
        runner(directory, "bfloat16", quantize="int4")


def test_other_types_are_refused(tmp_path: Path) -> None:
    directory = tiny_models.save("llama", tmp_path, **WIDE)
    with pytest.raises(ModelError, match="int4 takes dtype: bfloat16, not float32"):
        runner(directory, quantize="int4")


def test_gpus_without_its_kernels_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, capability = torch.device("cuda:0"), (7, 5)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(ModelError, match=r"int4 takes a GPU of compute capability 8\.0 or more"):
        _check_device(gpu)
    capability = (8, 0)
    _check_device(gpu)


def test_experts_are_refused(tmp_path: Path) -> None:
    directory = tiny_models.save("mixtral", tmp_path)
    with pytest.raises(ModelError, match=r"experts .*quantize: must be none"):
        runner(directory, "bfloat16", quantize="int4")
