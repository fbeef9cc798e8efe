"""Mixtures of experts on CUDA.

A row's experts are chosen on the device, by scores in float32, and every expert lists the rows that
take it. So a pass is one graph, whichever they are, and reads the matrices of experts that a row
takes. Rows that are padding take none.

What a row gets is summed by its own choices in their order, and a product always has `_TILE` rows,
each computed by itself: its bits do not depend on who shares its experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda.keys import ROW_SECTIONS, Size
from common.model.cuda.rowwise import gate_by, known_of
from common.model.linear import MakeProduct
from common.model.llama import Gate, Linear, Mixture
from common.model.quantized import round_weight

_PATH = tl.constexpr(ROW_SECTIONS.index("path"))
_TILE = tl.constexpr(16)
_LEAST, _NORMAL = tl.constexpr(-3.4028234663852886e38), tl.constexpr(1.1754943508222875e-38)
_GROUP = tl.constexpr(64)
"""Rows that a program computes, tile by tile; who has the next ones finds the matrix in a cache."""

_OUTPUTS, _INPUTS = 32, 128
"""What a program computes of an expert, and how much it reads at once."""

_LISTED = 1024
"""Choices that a program looks at together."""

_CHUNK = 1024
"""Numbers of a row that one program of `_sum` takes."""

_MOST_ROWS = 1024
"""That are computed at once: what each of its experts gives a row has a place of its own."""


@triton.jit(do_not_specialize=["count", "first"])
def _choose(
    scores,  # float32 [N, E], and one more where WEIGHED
    favours,  # float32 [E]
    words,  # int32, see `keys`
    count,  # rows of the batch
    first,  # of these rows in it
    chosen,  # int32 [N, CHOSEN]; -1 of rows that are padding, of which nothing else is written
    weights,  # float32 [N, CHOSEN]
    share,  # float32 [N]: of what all rows take, where WEIGHED
    scale,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    SIGMOID: tl.constexpr,
    FAVOURED: tl.constexpr,
    SUMMED: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, PLACES)
    if tl.load(words + _PATH * count + first + row) == 0:
        none = tl.full([PLACES], -1, tl.int32)
        tl.store(chosen + row * CHOSEN + place, none, mask=place < CHOSEN)
        return
    at = tl.arange(0, BLOCK)
    known = at < EXPERTS
    line = scores + row * (EXPERTS + WEIGHED)
    score = tl.load(line + at, mask=known, other=float("-inf"))
    if SIGMOID:
        chance = 1 / (1 + tl.exp(-score))
    else:
        chance = tl.exp(score - tl.max(score))
        chance = chance / tl.sum(chance)
    chance = tl.where(chance == chance, chance, 0.0)  # what is no number shall take some, too
    rank = chance
    if FAVOURED:
        rank += tl.load(favours + at, mask=known, other=0.0)
    rank = tl.where(known, tl.maximum(tl.where(rank == rank, rank, _LEAST), _LEAST), float("-inf"))

    found, kept = tl.zeros([PLACES], tl.int32), tl.zeros([PLACES], tl.float32)
    for index in range(CHOSEN):
        best = tl.min(tl.where(rank == tl.max(rank), at, BLOCK))  # of equal ones the first
        mine = tl.sum(tl.where(at == best, chance, 0.0))
        found = tl.where(place == index, best, found)
        kept = tl.where(place == index, mine, kept)
        rank = tl.where(at == best, float("-inf"), rank)
    if SUMMED:
        kept = kept / tl.maximum(tl.sum(kept), _NORMAL)
    tl.store(chosen + row * CHOSEN + place, found, mask=place < CHOSEN)
    tl.store(weights + row * CHOSEN + place, kept * scale, mask=place < CHOSEN)
    if WEIGHED:
        tl.store(share + row, 1 / (1 + tl.exp(-tl.load(line + EXPERTS))))


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


@triton.jit
def _sum(
    parts,  # float32 [N * CHOSEN, SIZE]
    chosen,  # int32 [N, CHOSEN]
    weights,  # float32 [N, CHOSEN]
    share,  # float32 [N], where WEIGHED
    beside,  # [N, SIZE], where SHARED: what all rows take
    out,  # [N, SIZE]
    CHOSEN: tl.constexpr,
    SIZE: tl.constexpr,
    SHARED: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    summed = tl.zeros([BLOCK], tl.float32)
    if tl.load(chosen + row * CHOSEN) >= 0:  # else it is padding
        for index in range(CHOSEN):
            choice = row * CHOSEN + index
            part = tl.load(parts + choice * SIZE + at, mask=at < SIZE, other=0.0)
            summed += part * tl.load(weights + choice)
        if SHARED:
            more = tl.load(beside + row * SIZE + at, mask=at < SIZE, other=0.0).to(tl.float32)
            if WEIGHED:
                more *= tl.load(share + row)
            summed += more
    tl.store(out + row * SIZE + at, summed.to(out.dtype.element_ty), mask=at < SIZE)


class Experts:
    """Those of one layer.

    Args:
        mixture: They, and how a row chooses.
        make: Makes the product that scores come of.
        gate: How they gate.
        rounded: Whether their weights are rounded to int8.
    """

    def __init__(self, mixture: Mixture, make: MakeProduct, gate: Gate, *, rounded: bool) -> None:
        count = len(mixture.experts)
        weight, bias = mixture.router
        self._scores = make(weight.float(), None if bias is None else bias.float())
        self._favours = None if mixture.favours is None else mixture.favours.float()
        self._factors = None if mixture.factors is None else mixture.factors.float()
        gates, downs = zip(*((each.gate_up, each.down) for each in mixture.experts), strict=True)
        self._gate_up = _Matrices(gates, gate, rounded=rounded)
        self._down = _Matrices(downs, rounded=rounded)
        self._chosen, self._scale = mixture.chosen, mixture.scale
        self._choice = {
            "EXPERTS": count,
            "CHOSEN": mixture.chosen,
            "SIGMOID": mixture.sigmoid,
            "FAVOURED": self._favours is not None,
            "SUMMED": mixture.summed,
            "WEIGHED": len(weight) > count,
            "BLOCK": triton.next_power_of_2(count),
            "PLACES": triton.next_power_of_2(mixture.chosen),
        }

    def __call__(
        self,
        x: Tensor,
        words: Tensor,
        size: Size,
        beside: Tensor | None,
        chooses: Tensor | None = None,
    ) -> Tensor:
        """What rows get of the experts that they choose, and of what all take.

        Args:
            x: `[N, hidden]`.
            words: The batch, laid out; see `keys`.
            size: Of the batch.
            beside: What all rows take, `[N, hidden]`; None where there is nothing.
            chooses: What they choose by, `[N, hidden]`; None for `x`.

        Returns:
            `[N, hidden]`; zero for rows that are padding.
        """
        out = torch.empty_like(x)
        scores = self._scores((x if chooses is None else chooses).float())
        for first in range(0, len(x), _MOST_ROWS):
            here = slice(first, first + _MOST_ROWS)
            chosen, weights, share = self._choose(scores[here], words, size, first)
            parts = self._parts(x[here], chosen)
            rows, width = x[here].shape
            _sum[(rows, triton.cdiv(width, _CHUNK))](
                parts,
                chosen,
                weights,
                share,
                out[here] if beside is None else beside[here],
                out[here],
                CHOSEN=self._chosen,
                SIZE=width,
                SHARED=beside is not None,
                WEIGHED=self._choice["WEIGHED"],
                BLOCK=_CHUNK,
            )
        return out

    def _choose(
        self, scores: Tensor, words: Tensor, size: Size, first: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Experts of rows and their weights, `[N, chosen]` each, and the weight of what all take.

        Args:
            scores: Of these rows.
            words: The batch, laid out.
            size: Of the batch.
            first: Of these rows in it.
        """
        rows = len(scores)
        chosen = scores.new_empty(rows, self._chosen, dtype=torch.int32)
        weights = torch.empty_like(chosen, dtype=torch.float32)
        share = weights.new_empty(rows)
        _choose[(rows,)](
            scores,
            weights if self._favours is None else self._favours,
            words,
            size.rows,
            first,
            chosen,
            weights,
            share,
            self._scale,
            **self._choice,
        )
        if self._factors is not None:
            factors = self._factors.index_select(0, chosen.flatten().clamp_min(0))  # -1 in padding
            weights *= factors.view(weights.shape)
        return chosen, weights, share

    def _parts(self, x: Tensor, chosen: Tensor) -> Tensor:
        """What each expert of each row gives it, float32 `[N * chosen, hidden]`."""
        experts, choices = self._choice["EXPERTS"], chosen.numel()
        lists = chosen.new_empty(experts, len(x))
        counts = chosen.new_empty(experts)
        _list[(experts,)](chosen, lists, counts, choices, CHOSEN=self._chosen, LISTED=_LISTED)
        opened = x.new_empty(choices, self._gate_up.outputs)
        self._gate_up.multiply(x, lists, counts, opened)
        parts = x.new_empty(choices, self._down.outputs, dtype=torch.float32)
        self._down.multiply(opened, lists, counts, parts)
        return parts


class _Matrices:
    """One of each expert.

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
        self.outputs = self._weight.shape[1] // (2 if gate else 1)
        """Numbers that come out."""

    def multiply(self, x: Tensor, lists: Tensor, counts: Tensor, out: Tensor) -> None:
        """Writes what comes out for each choice.

        Args:
            x: Rows that several choices in turn may read, `[N * chosen / readers, in]`.
            lists: Choices by expert, int32 `[E, N]`.
            counts: How many each has, int32 `[E]`.
            out: `[N * chosen, outputs]`.
        """
        experts, rows = lists.shape
        _multiply[(triton.cdiv(rows, _GROUP.value), triton.cdiv(self.outputs, _OUTPUTS), experts)](
            x,
            self._weight,
            self._scale,
            self._scale if self._bias is None else self._bias,
            lists,
            counts,
            out,
            rows,
            READERS=len(out) // len(x),
            IN=x.shape[1],
            OUT=self.outputs,
            **self._gated,
            ROUNDED=self._rounded,
            BIASED=self._bias is not None,
            OUTPUTS=_OUTPUTS,
            INPUTS=_INPUTS,
            num_stages=3 if x.dtype == torch.float32 else 4,  # what small devices hold
        )
