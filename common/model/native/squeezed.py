"""bfloat16 weights in 12 bits, none of them rounded; `squeezed.h` says how, and unpacks them."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.native.library import BLOCK_OUTPUTS

_LOWER = 0xF
"""The half of an exponent that every weight has of its own."""

_SLAB_GROUPS = 16
"""`SLAB_GROUPS` of `squeezed.h`."""

_MOST_STRAYS = 1 / 256
"""Share of weights with another exponent beyond which setting them takes what reading less saves.
Of normally distributed ones with a standard deviation of 0.02 it is a thousandth."""

_VECTORS, _VECTOR_WORDS = 4, 32

_AT_A_TIME = 1 << 20
"""Weights, whose parts the caches hold then."""

_SIGN_AND_FRACTION = ~0x7F80
_PLACE = 7
"""Of the lower half of an exponent."""


class Squeezed(NamedTuple):
    """A matrix in 12 bits a weight."""

    packed: Tensor
    """int16 `[slabs, 3, 16, 32]`."""
    exponent: int
    """That of nearly all, with a lower half of 0."""
    starts: Tensor
    """Where the strays of each slab begin, int32 `[slabs + 1]`."""
    strays: Tensor
    """A place in its slab, and in the lower half the bits of its weight; int32."""


def squeeze(weight: Tensor) -> Squeezed | None:
    """Squeezes a matrix of bfloat16; None where too many stray.

    # [out, in]
    """
    bits = weight.view(torch.int16)
    rows = max(_AT_A_TIME // weight.shape[1] // BLOCK_OUTPUTS, 1) * BLOCK_OUTPUTS
    pieces = bits.split(rows)
    counts = torch.stack([_count_exponents(piece) for piece in pieces]).sum(0)
    alike = counts.view(-1, _LOWER + 1).sum(1)
    most = int(alike.argmax())
    if weight.numel() - int(alike[most]) > _MOST_STRAYS * weight.numel():
        return None
    exponent = most * (_LOWER + 1)
    packed, strayed, strays = zip(*(_squeezed(piece, exponent) for piece in pieces), strict=True)
    starts = F.pad(torch.cat(strayed).cumsum(0), (1, 0))
    return Squeezed(torch.cat(packed), exponent, starts.int(), torch.cat(strays))


def _count_exponents(bits: Tensor) -> Tensor:
    """How many weights have each exponent. # [out, in] -> [256]"""
    exponents = (bits >> _PLACE & 0xFF).to(torch.uint8)
    return torch.bincount(exponents.flatten(), minlength=256)


def _squeezed(bits: Tensor, exponent: int) -> tuple[Tensor, Tensor, Tensor]:
    """Squeezes whole blocks; returns slabs, how many stray of each, and which.

    # [out, in] -> [slabs, 3, groups, words], [slabs], [strays]
    """
    # What is missing of outputs and inputs counts for nothing, so that it need not be 0, which
    # strays.
    outputs, inputs = bits.shape
    missing = (0, -inputs % (2 * _SLAB_GROUPS), 0, -outputs % BLOCK_OUTPUTS)
    padded = F.pad(bits, missing, value=exponent << _PLACE)
    blocks = padded.view(-1, BLOCK_OUTPUTS, padded.shape[1] // 2, 2).transpose(1, 2)
    words = blocks.reshape(-1, _SLAB_GROUPS, _VECTORS, _VECTOR_WORDS)
    flat = words.flatten(1)
    stray = (flat ^ exponent << _PLACE) & (0xFF & ~_LOWER) << _PLACE != 0
    slab, place = stray.nonzero().unbind(1)
    strays = place << 16 | flat[slab, place].long() & 0xFFFF
    return _packed(words), stray.sum(1), strays.int()


def _packed(words: Tensor) -> Tensor:
    """Slabs in 12 bits a weight. # [slabs, groups, vectors, words] -> [slabs, 3, groups, words]"""
    rest = words & _SIGN_AND_FRACTION
    first, second, third, fourth = (words & _LOWER << _PLACE).unbind(2)
    lower = first | second << 4 | third >> 4 | _swapped(fourth)
    one, other = (rest[:, :, ::2] | _swapped(rest[:, :, 1::2])).unbind(2)
    return torch.stack([one, lower, other], 1)


def _swapped(words: Tensor) -> Tensor:
    """Words with their bytes swapped."""
    return words << 8 | (words >> 8 & 0xFF)
