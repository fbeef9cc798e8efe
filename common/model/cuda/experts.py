"""Mixtures of experts on CUDA.

A row's experts are chosen on the device, by scores in float32: a pass is one graph, whichever they
are. Rows that are padding take none. What a row gets is summed by its own choices in their order:
its bits do not depend on who shares its experts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda.grouped import GroupedLinear, Groups
from common.model.cuda.keys import ROW_SECTIONS, Size
from common.model.linear import MakeProduct
from common.model.llama import Gate, Mixture

_PATH = tl.constexpr(ROW_SECTIONS.index("path"))
_LEAST, _NORMAL = tl.constexpr(-3.4028234663852886e38), tl.constexpr(1.1754943508222875e-38)
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
        self._gate_up = GroupedLinear(gates, gate, rounded=rounded)
        self._down = GroupedLinear(downs, rounded=rounded)
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
        groups, choices = Groups.of(chosen, self._choice["EXPERTS"]), chosen.numel()
        opened = self._gate_up(x, groups, choices, x.dtype)
        return self._down(opened, groups, choices, torch.float32)
