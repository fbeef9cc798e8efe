"""Weights in 12 bits: the products that whole ones give, to the last bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.model.native import Decoder, NativeProducts, instructions
from common.model.native.squeezed import squeeze

_STRAYS = (0.0, -0.0, 1e-30, -1e-40, 3.0, -7e5, 2.0**-16)

pytestmark = pytest.mark.skipif(instructions() != "amx", reason="no AMX here")


def _drawn(outputs: int, inputs: int, seed: int) -> Tensor:
    """Weights most of which are alike, and a few that are not."""
    generator = torch.Generator().manual_seed(seed)
    weights = (0.1 * torch.randn(outputs, inputs, generator=generator)).bfloat16()
    odd = torch.randperm(weights.numel(), generator=generator)[: weights.numel() // 400]
    kinds = torch.randint(len(_STRAYS), odd.shape, generator=generator)
    weights.view(-1)[odd] = torch.tensor(_STRAYS).bfloat16()[kinds]
    return weights


def _beyond(inputs: int) -> Tensor:
    """Outputs for whose sake a matrix is not squeezed."""
    powers = torch.arange(-100, 101, 4).float().exp2()
    return powers.repeat(64, -(-inputs // len(powers)))[:, :inputs].bfloat16()


@given(
    outputs=st.integers(64, 200),
    inputs=st.sampled_from([32, 62, 64, 90, 320, 431]),
    rows=st.integers(1, 80),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
def test_products_are_those_of_whole_weights(
    outputs: int, inputs: int, rows: int, threads: int, seed: int
) -> None:
    weights = _drawn(outputs, inputs, seed)
    both = torch.cat([weights, _beyond(inputs)])
    assert squeeze(weights) is not None
    assert squeeze(both) is None
    x = torch.randn(1, rows, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16()
    decoder = Decoder(threads)
    squeezed, whole = (NativeProducts(decoder, some[None], None)(x) for some in (weights, both))
    assert torch.equal(squeezed, whole[..., :outputs])


def test_no_bit_is_lost() -> None:
    """Each weight alone, by rows that are 1 at one input and 0 at the others."""
    weights = _drawn(100, 96, 0)
    rows = torch.eye(96).bfloat16()
    found = NativeProducts(Decoder(1), weights[None], None)(rows[None])[0]
    normal = torch.where(weights.abs() < 2.0**-126, 0, weights)  # tiles take denormals for 0
    assert torch.equal(found, normal.float().T)


def test_weights_take_12_bits() -> None:
    weights = 0.02 * torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    squeezed = squeeze(weights.bfloat16())
    assert squeezed is not None
    assert squeezed.packed.numel() * 16 == weights.numel() * 12
    assert len(squeezed.strays) < 0.002 * weights.numel()


def test_many_pieces_are_one_matrix() -> None:
    """A large matrix is squeezed piece by piece."""
    weights = _drawn(128, 1 << 15, 1)
    squeezed, first = squeeze(weights), squeeze(weights[:64])
    assert squeezed is not None
    assert first is not None
    slabs = len(first.packed)
    assert torch.equal(squeezed.packed[:slabs], first.packed)
    assert torch.equal(squeezed.starts[: slabs + 1], first.starts)
    assert torch.equal(squeezed.strays[: len(first.strays)], first.strays)
    assert int(squeezed.starts[-1]) == len(squeezed.strays) > len(first.strays)
