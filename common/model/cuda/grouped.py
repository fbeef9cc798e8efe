"""Grouped products on CUDA: each of a row's choices goes through the matrix of its expert.

Every expert lists the choices that are of it, on the device, and only matrices of experts that a
row takes are read. A product always has `_TILE` rows, each computed by itself: its bits do not
depend on who shares its expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda.rowwise import gate_by, known_of
from common.model.llama import Gate, Linear
from common.model.quantized import round_weight

_TILE = tl.constexpr(16)
_GROUP = tl.constexpr(64)
"""Rows that a program computes, tile by tile; who has the next ones finds the matrix in a cache."""

_OUTPUTS, _INPUTS = 32, 128
"""What a program computes of an expert, and how much it reads at once."""

_LISTED = 1024
"""Choices that a program looks at together."""


@triton.jit(do_not_specialize=["choices"])
def _list(
    chosen,  # int32 [N * CHOSEN]
    lists,  # int32 [E, N]: which of the choices are of an expert
    counts,  # int32 [E]
    choices,  # N * CHOSEN
    CHOSEN: tl.constexpr,
    LISTED: tl.constexpr,
):
    expert = tl.program_id(0)
    line = lists + expert.to(tl.int64) * (choices // CHOSEN)
    count = tl.full([], 0, tl.int32)
    for start in range(0, choices, LISTED):
        at = start + tl.arange(0, LISTED)
        mine = tl.load(chosen + at, mask=at < choices, other=-1) == expert
        before = tl.cumsum(mine.to(tl.int32), 0)
        tl.store(line + count + before - 1, at, mask=mine)
        count += tl.sum(mine.to(tl.int32))
    tl.store(counts + expert, count)


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x,  # [N * CHOSEN / READERS, IN]
    weight,  # [E, OUT, IN]; where GATED twice as many, gates first
    scale,  # float32 [E, OUT] likewise, where ROUNDED
    bias,  # float32 [E, OUT] likewise, where BIASED
    lists,  # int32 [E, N]
    counts,  # int32 [E]
    out,  # [N * CHOSEN, OUT]
    rows,  # N
    READERS: tl.constexpr,  # choices that read the same row
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GATED: tl.constexpr,
    CURVE: tl.constexpr,
    STEEPNESS: tl.constexpr,
    LIMIT: tl.constexpr,
    ROUNDED: tl.constexpr,
    BIASED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    expert = tl.program_id(2).to(tl.int64)
    first = tl.program_id(0) * _GROUP
    behind = tl.minimum(tl.load(counts + expert), first + _GROUP)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = output < OUT
    HEIGHT: tl.constexpr = 2 * OUT if GATED else OUT
    line = expert * HEIGHT + output
    for start in range(first, behind, _TILE):
        place = start + tl.arange(0, _TILE)
        real = place < behind
        choice = tl.load(lists + expert * rows + place, mask=real, other=0).to(tl.int64)
        summed = tl.zeros([_TILE, OUTPUTS], tl.float32)
        up = tl.zeros([_TILE, OUTPUTS], tl.float32)
        for begin in range(0, IN, INPUTS):
            at = begin + tl.arange(0, INPUTS)
            here = x + (choice // READERS)[:, None] * IN + at[None, :]
            read = tl.load(here, mask=real[:, None] & (at < IN)[None, :], other=0.0)
            known = inside[None, :] & (at < IN)[:, None]
            numbers = weight + line[None, :] * IN + at[:, None]
            wide = tl.load(numbers, mask=known, other=0).to(read.dtype)
            summed = tl.dot(read, wide, summed, input_precision="ieee")
            if GATED:
                wide = tl.load(numbers + OUT * IN, mask=known, other=0).to(read.dtype)
                up = tl.dot(read, wide, up, input_precision="ieee")
        if ROUNDED:
            summed *= tl.load(scale + line, mask=inside, other=0.0)[None, :]
        if BIASED:
            summed += tl.load(bias + line, mask=inside, other=0.0)[None, :]
        if GATED:
            if ROUNDED:
                up *= tl.load(scale + line + OUT, mask=inside, other=0.0)[None, :]
            if BIASED:
                up += tl.load(bias + line + OUT, mask=inside, other=0.0)[None, :]
            summed = gate_by(summed, up, CURVE, STEEPNESS, LIMIT)
        target = out + choice[:, None] * OUT + output[None, :]
        tl.store(target, summed.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


class Groups(NamedTuple):
    """Choices by expert."""

    lists: Tensor
    """Which are of each, int32 `[E, N]`, and behind them nothing that means anything."""
    counts: Tensor
    """How many are, int32 `[E]`."""

    @classmethod
    def of(cls, chosen: Tensor, experts: int) -> Groups:
        """Those of rows.

        Args:
            chosen: Experts of rows, int32 `[N, chosen]`; -1 in rows that take none.
            experts: How many there are.
        """
        groups = cls(chosen.new_empty(experts, len(chosen)), chosen.new_empty(experts))
        known = {"CHOSEN": chosen.shape[1], "LISTED": _LISTED}
        _list[(experts,)](chosen, *groups, chosen.numel(), **known)
        return groups


class GroupedLinear:
    """A linear map of each expert.

    Args:
        maps: Theirs; all have a bias, or none.
        gate: How their first half gates the other one; None where it does not.
        rounded: Whether they are rounded to int8.
    """

    def __init__(self, maps: Sequence[Linear], gate: Gate | None = None, *, rounded: bool) -> None:
        weights = [each.weight for each in maps]
        self._rounded = rounded
        self._gated = {"GATED": gate is not None, **known_of(gate or Gate())}
        if rounded:
            steps, scales = zip(*map(round_weight, weights), strict=True)
            self._weight, self._scale = torch.stack(steps), torch.stack(scales)
        else:
            self._weight = self._scale = torch.stack(weights)
        biases = [each.bias for each in maps if each.bias is not None]
        assert len(biases) in (0, len(maps)), "biases on all or on none"
        self._bias = torch.stack(biases).float() if biases else None
        self._outputs = self._weight.shape[1] // (2 if gate else 1)

    def __call__(self, x: Tensor, groups: Groups, choices: int, dtype: torch.dtype) -> Tensor:
        """What comes out for each choice.

        Args:
            x: Rows that several choices in turn may read, `[choices / readers, in]`.
            groups: The choices by expert.
            choices: How many there are.
            dtype: Of what comes out.

        Returns:
            `[choices, outputs]`; of rows that take none nothing is written.
        """
        experts, rows = groups.lists.shape
        out = x.new_empty(choices, self._outputs, dtype=dtype)
        grid = triton.cdiv(rows, _GROUP.value), triton.cdiv(self._outputs, _OUTPUTS), experts
        _multiply[grid](
            x,
            self._weight,
            self._scale,
            self._scale if self._bias is None else self._bias,
            *groups,
            out,
            rows,
            READERS=choices // len(x),
            IN=x.shape[1],
            OUT=self._outputs,
            **self._gated,
            ROUNDED=self._rounded,
            BIASED=self._bias is not None,
            OUTPUTS=_OUTPUTS,
            INPUTS=_INPUTS,
            num_stages=3 if x.dtype == torch.float32 else 4,  # what small devices hold
        )
        return out
