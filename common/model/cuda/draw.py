"""Draws tokens on CUDA: the choices of `common.model.sampling`, without waiting for the device.

Two kernels. One scores every token: its logit by the temperature, and noise. In the other a program
looks for the best scores of a row among the tokens that its warpers leave. It sorts nothing: the
best token survives top-p where less than top-p of the weight stands before it, and where it does
not, no token behind it in that order does, so they are left out and the next best is looked at.

Every number is computed by itself and sums are of integers, as in `common.model.sampling`; so what
a row draws does not depend on the rows beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda.device import WORDS

_WORDS = tl.constexpr(WORDS)
_LEAST, _LARGEST = tl.constexpr(-3.4028234663852886e38), tl.constexpr(3.4028234663852886e38)
_LEAST_TEMPERATURE = tl.constexpr(1e-30)
_UNIT = tl.constexpr(2.0**40)  # what the likeliest token weighs
_ALL = tl.constexpr(1 << 62)
_QUADS, _TOKENS, _WARPS = 256, 4096, 32
"""Blocks of four tokens that a program scores; tokens that one looks at together, and its warps."""


@triton.jit
def _score(
    logits,  # [N, V]
    drawings,  # int64 [N, WORDS]
    scaled,  # float32 [N, V]
    scores,  # float64 [N, V]
    vocab,  # V
    QUADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
    token = tl.program_id(1) * QUADS * 4 + tl.arange(0, QUADS * 4)
    inside = token < vocab
    drawing = drawings + row * _WORDS
    temperature = tl.load(drawing + 2).to(tl.float64, bitcast=True)
    value = tl.load(logits + row * vocab + token, mask=inside, other=0.0).to(tl.float32)
    if temperature > 0:
        least = tl.maximum(temperature, _LEAST_TEMPERATURE).to(tl.float32)
        value = tl.div_rn(value, least)
    value = tl.where(value != value, _LEAST, tl.minimum(tl.maximum(value, _LEAST), _LARGEST))
    score = value.to(tl.float64)
    if temperature > 0:
        position = tl.load(drawing + 1)
        low = (position & 0xFFFFFFFF).to(tl.uint32)
        high = (position >> 32).to(tl.uint32)
        none = tl.zeros_like(quad).to(tl.uint32)
        first, second, third, fourth = tl.philox(
            tl.load(drawing), quad.to(tl.uint32), none + low, none + high, none
        )
        word = tl.interleave(tl.interleave(first, third), tl.interleave(second, fourth))
        uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32
        score -= tl.log(-tl.log(uniform))
    tl.store(scaled + row * vocab + token, value, mask=inside)
    tl.store(scores + row * vocab + token, score, mask=inside)


@triton.jit
def _weight(value, top):
    """Probability relative to that of the likeliest token, fixed point."""
    return (tl.exp(value - top) * _UNIT).to(tl.int64)


@triton.jit
def _place(value):
    """Integers in the order of float32 values."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _kth(line, count, vocab, TOKENS: tl.constexpr):
    """The largest value that at least so many of a line reach."""
    low, high = tl.full([], -(1 << 31), tl.int64), tl.full([], 1 << 31, tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        reach = tl.full([], 0, tl.int64)
        for start in range(0, vocab, TOKENS):
            token = start + tl.arange(0, TOKENS)
            inside = token < vocab
            value = tl.load(line + token, mask=inside, other=0.0)
            reach += tl.sum((inside & (_place(value) >= middle)).to(tl.int64))
        if reach >= count:
            low = middle
        else:
            high = middle
    place = low.to(tl.int32)
    return tl.where(place < 0, place ^ 0x7FFFFFFF, place).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["best"])
def _pick(
    scaled,  # float32 [N, V]
    scores,  # float64 [N, V]
    drawings,  # int64 [N, WORDS]
    ids,  # int64 [N, best]
    behind,  # float32 [N, best]
    best,
    vocab,  # V
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    values, line = scaled + row * vocab, scores + row * vocab
    drawing = drawings + row * _WORDS
    warm = tl.load(drawing + 2).to(tl.float64, bitcast=True) > 0
    top_k = tl.load(drawing + 3)
    top_p = tl.load(drawing + 4).to(tl.float64, bitcast=True)
    min_p = tl.load(drawing + 5).to(tl.float64, bitcast=True)

    least = tl.full([], float("-inf"), tl.float32)  # what survives reaches it
    before = tl.full([], _ALL, tl.int64)  # and less than this weight stands before it
    top = tl.full([], float("-inf"), tl.float32)
    if warm & ((top_p < 1) | (min_p > float("-inf"))):
        for start in range(0, vocab, TOKENS):
            token = start + tl.arange(0, TOKENS)
            value = tl.load(values + token, mask=token < vocab, other=float("-inf"))
            top = tl.maximum(top, tl.max(value))
    if warm & (top_k > 0) & (top_k < vocab):
        least = _kth(values, top_k, vocab, TOKENS)
    if warm & (top_p < 1):
        total = tl.full([], 0, tl.int64)
        for start in range(0, vocab, TOKENS):
            token = start + tl.arange(0, TOKENS)
            value = tl.load(values + token, mask=token < vocab, other=float("-inf"))
            kept = (token < vocab) & (value >= least)
            total += tl.sum(tl.where(kept, _weight(value, top), 0))
        before = tl.maximum(tl.ceil(total.to(tl.float64) * top_p).to(tl.int64), 1)
    if warm & (min_p > float("-inf")):
        least = tl.maximum(least, (top.to(tl.float64) + min_p).to(tl.float32))

    bar = tl.full([], float("-inf"), tl.float32)  # at this place of the order top-p cuts, or before
    bar_token = tl.full([], vocab, tl.int32)
    lowest, last = tl.full([], float("inf"), tl.float64), tl.full([], -1, tl.int32)
    first = tl.full([], 0.0, tl.float64)
    for rank in range(best):
        high, found = tl.full([], float("-inf"), tl.float64), tl.full([], -1, tl.int32)
        searching = True
        while searching:
            high, found = tl.full([], float("-inf"), tl.float64), tl.full([], -1, tl.int32)
            for start in range(0, vocab, TOKENS):
                token = start + tl.arange(0, TOKENS)
                inside = token < vocab
                value = tl.load(values + token, mask=inside, other=float("-inf"))
                score = tl.load(line + token, mask=inside, other=float("-inf"))
                open_ = inside & (value >= least)
                open_ &= (value > bar) | ((value == bar) & (token < bar_token))
                open_ &= (score < lowest) | ((score == lowest) & (token > last))
                score = tl.where(open_, score, float("-inf"))
                highest = tl.max(score)
                if highest > high:  # of equal ones the first
                    high = highest
                    found = tl.min(tl.where(score == highest, token, vocab))
            searching = False
            if (found >= 0) & (before < _ALL):
                mine = tl.load(values + found)
                weight = tl.full([], 0, tl.int64)
                for start in range(0, vocab, TOKENS):
                    token = start + tl.arange(0, TOKENS)
                    value = tl.load(values + token, mask=token < vocab, other=float("-inf"))
                    ahead = (value > mine) | ((value == mine) & (token < found))
                    ahead &= token < vocab
                    weight += tl.sum(tl.where(ahead, _weight(value, top), 0))
                if weight >= before:
                    searching = True
                    bar, bar_token = mine, found
        if rank == 0:
            first = high
        tl.store(ids + row * best + rank, found.to(tl.int64))
        tl.store(behind + row * best + rank, (first - high).to(tl.float32))
        lowest, last = high, found


def draw(logits: Tensor, drawings: Tensor, ids: Tensor, behind: Tensor) -> None:
    """Draws a token for each row, and the ones that come closest.

    Args:
        logits: Of any floating-point type, `[N, V]`.
        drawings: see `device.packed`; of a temperature of 0 the likeliest.
        ids: Where the tokens go, the best first, of equally good ones the lowest; -1 where no more
            survive. int64 `[N, best]`.
        behind: Where it goes how much less their scores are than the best; float32 `[N, best]`.
    """
    rows, vocab = logits.shape
    scaled = torch.empty_like(logits, dtype=torch.float32)
    scores = torch.empty_like(logits, dtype=torch.float64)
    _score[(rows, triton.cdiv(vocab, 4 * _QUADS))](
        logits, drawings, scaled, scores, vocab, QUADS=_QUADS
    )
    _pick[(rows,)](
        scaled,
        scores,
        drawings,
        ids,
        behind,
        ids.shape[1],
        vocab,
        TOKENS=min(_TOKENS, triton.next_power_of_2(vocab)),
        num_warps=_WARPS,
    )
