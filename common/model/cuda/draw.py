"""Draws tokens on CUDA: the choices of `common.model.sampling`, without waiting for the device.

Two kernels. One scores every token: its logit, once biases and penalties have changed it, by the
temperature, and noise. In the other a program looks for the best scores of a row among the tokens
that its warpers leave. It sorts nothing: the best token survives top-p where less than top-p of the
weight stands before it, and where it does not, no token behind it in that order does, so they are
left out and the next best is looked at.

Every number is computed by itself and sums are of integers, as in `common.model.sampling`; so what
a row draws does not depend on the rows beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda.drawings import ADJUSTING, PATH, WORDS

_WORDS, _ADJUSTING, _PATH = map(tl.constexpr, (WORDS, ADJUSTING, PATH))
_LEAST, _LARGEST = tl.constexpr(-3.4028234663852886e38), tl.constexpr(3.4028234663852886e38)
_LEAST_TEMPERATURE = tl.constexpr(1e-30)
_UNIT = tl.constexpr(2.0**40)  # what the likeliest token weighs
_ALL = tl.constexpr(1 << 62)
_NOWHERE, _HIGHEST = tl.constexpr(-(1 << 63)), tl.constexpr((1 << 63) - 1)  # of places of scores
_QUADS, _TOKENS, _WARPS = 256, 4096, 32
"""Blocks of four tokens that a program scores; tokens that one looks at together, and its warps."""


@triton.jit
def _flipped(bits):
    """Turns the bits of float32 into integers of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _flipped_wide(bits):
    """The same of float64."""
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@triton.jit
def _adjusted(value, first, drawings, how, TOKENS: tl.constexpr):
    """What `common.model.adjust` makes of the logits of some tokens, bit for bit."""
    token = first + tl.arange(0, TOKENS)
    ids, count = drawings + tl.load(drawings + how + 3), tl.load(drawings + how + 4)
    for place in range(count):
        biased = tl.load(ids + place).to(tl.int32)
        if (biased >= first) & (biased < first + TOKENS):
            bias = tl.load(ids + count + place).to(tl.float64, bitcast=True).to(tl.float32)
            value = tl.where(token == biased, value + bias, value)
    seen = tl.load(drawings + how + 1).to(tl.pointer_type(tl.int8))
    inside = token < tl.load(drawings + how + 2)
    occurs = tl.load(seen + token, mask=inside, other=0) != 0
    path = drawings + how + _PATH
    for place in range(tl.load(path)):
        occurs |= token == tl.load(path + 1 + place).to(tl.int32)
    factor = tl.load(drawings + how).to(tl.float64, bitcast=True).to(tl.float32)
    changed = tl.where(value < 0, value * factor, tl.div_rn(value, factor))
    return tl.where(occurs, changed, value)


@triton.jit
def _score(
    logits,  # [N, V]
    drawings,  # int64, see `drawings`
    scaled,  # float32 [N, V]
    places,  # int64 [N, V]: of scores; devices of few units for float64 compare integers faster
    vocab,  # V
    QUADS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
    first_token = tl.program_id(1) * QUADS * 4
    token = first_token + tl.arange(0, QUADS * 4)
    inside = token < vocab
    drawing = drawings + row * _WORDS
    temperature = tl.load(drawing + 2).to(tl.float64, bitcast=True)
    if temperature < 0:
        return
    value = tl.load(logits + row * vocab + token, mask=inside, other=0.0).to(tl.float32)
    how = tl.load(drawing + _ADJUSTING)
    if how > 0:
        value = _adjusted(value, first_token, drawings, how, QUADS * 4)
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
    score = tl.where(score == 0, 0.0, score)  # one zero, not two
    place = _flipped_wide(score.to(tl.int64, bitcast=True))
    tl.store(places + row * vocab + token, place, mask=inside)


@triton.jit
def _weight(value, top):
    """Probability relative to that of the likeliest token, fixed point."""
    return (tl.exp(value - top) * _UNIT).to(tl.int64)


@triton.jit
def _kth(line, count, vocab, TOKENS: tl.constexpr):
    """The largest value that at least so many of a line reach."""
    least = tl.full([], -(1 << 31), tl.int32)  # all reach it
    step = tl.full([], 1 << 30, tl.int32)
    while step > 0:  # a quarter of what is left at a time
        first = least + step
        second = first + step
        third = second + step
        some = tl.zeros([TOKENS], tl.int32)
        more, most = some, some
        for start in range(0, vocab, TOKENS):
            token = start + tl.arange(0, TOKENS)
            value = tl.load(line + token, mask=token < vocab, other=float("-inf"))
            place = _flipped(value.to(tl.int32, bitcast=True))
            some += (place >= first).to(tl.int32)
            more += (place >= second).to(tl.int32)
            most += (place >= third).to(tl.int32)
        reached = (tl.sum(some) >= count).to(tl.int32) + (tl.sum(more) >= count).to(tl.int32)
        least += step * (reached + (tl.sum(most) >= count).to(tl.int32))
        step = step >> 2
    return _flipped(least).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["best"])
def _pick(
    scaled,  # float32 [N, V]
    places,  # int64 [N, V]
    drawings,  # int64, see `drawings`
    ids,  # int64 [N, best]
    behind,  # float32 [N, best]
    best,
    vocab,  # V
    TOKENS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    values, line = scaled + row * vocab, places + row * vocab
    drawing = drawings + row * _WORDS
    temperature = tl.load(drawing + 2).to(tl.float64, bitcast=True)
    if temperature < 0:
        return
    warm = temperature > 0
    top_k = tl.load(drawing + 3)
    top_p = tl.load(drawing + 4).to(tl.float64, bitcast=True)
    min_p = tl.load(drawing + 5).to(tl.float64, bitcast=True)

    # Each lane goes through its own tokens; they meet once after each loop.
    least = tl.full([], float("-inf"), tl.float32)  # what survives reaches it
    before = tl.full([], _ALL, tl.int64)  # and less than this weight stands before it
    top = tl.full([], float("-inf"), tl.float32)
    if warm & ((top_p < 1) | (min_p > float("-inf"))):
        tops = tl.full([TOKENS], float("-inf"), tl.float32)
        for start in range(0, vocab, TOKENS):
            token = start + tl.arange(0, TOKENS)
            value = tl.load(values + token, mask=token < vocab, other=float("-inf"))
            tops = tl.maximum(tops, value)
        top = tl.max(tops)
    if warm & (top_k > 0) & (top_k < vocab):
        least = _kth(values, top_k, vocab, TOKENS)
    if warm & (top_p < 1):
        totals = tl.zeros([TOKENS], tl.int64)
        for start in range(0, vocab, TOKENS):
            token = start + tl.arange(0, TOKENS)
            value = tl.load(values + token, mask=token < vocab, other=float("-inf"))
            kept = (token < vocab) & (value >= least)
            totals += tl.where(kept, _weight(value, top), 0)
        before = tl.maximum(tl.ceil(tl.sum(totals).to(tl.float64) * top_p).to(tl.int64), 1)
    if warm & (min_p > float("-inf")):
        least = tl.maximum(least, (top.to(tl.float64) + min_p).to(tl.float32))

    bar = tl.full([], float("-inf"), tl.float32)  # at this place of the order top-p cuts, or before
    bar_token = tl.full([], vocab, tl.int32)
    lowest, last = tl.full([], _HIGHEST, tl.int64), tl.full([], -1, tl.int32)
    first = tl.full([], 0.0, tl.float64)
    for rank in range(best):
        high, found = tl.full([], _NOWHERE, tl.int64), tl.full([], -1, tl.int32)
        searching = True
        while searching:
            highs = tl.full([TOKENS], _NOWHERE, tl.int64)
            tokens = tl.full([TOKENS], -1, tl.int32)
            for start in range(0, vocab, TOKENS):
                token = start + tl.arange(0, TOKENS)
                inside = token < vocab
                value = tl.load(values + token, mask=inside, other=float("-inf"))
                place = tl.load(line + token, mask=inside, other=0)
                open_ = inside & (value >= least)
                open_ &= (value > bar) | ((value == bar) & (token < bar_token))
                open_ &= (place < lowest) | ((place == lowest) & (token > last))
                higher = open_ & (place > highs)  # of equal ones the first
                highs = tl.where(higher, place, highs)
                tokens = tl.where(higher, token, tokens)
            high = tl.max(highs)
            found = tl.min(tl.where((highs == high) & (tokens >= 0), tokens, vocab))
            found = tl.where(found < vocab, found, -1)
            searching = False
            if (found >= 0) & (before < _ALL):
                mine = tl.load(values + found)
                weights = tl.zeros([TOKENS], tl.int64)
                for start in range(0, vocab, TOKENS):
                    token = start + tl.arange(0, TOKENS)
                    value = tl.load(values + token, mask=token < vocab, other=float("-inf"))
                    ahead = (value > mine) | ((value == mine) & (token < found))
                    ahead &= token < vocab
                    weights += tl.where(ahead, _weight(value, top), 0)
                if tl.sum(weights) >= before:
                    searching = True
                    bar, bar_token = mine, found
        score = tl.where(
            found >= 0, _flipped_wide(high).to(tl.float64, bitcast=True), float("-inf")
        )
        if rank == 0:
            first = score
        tl.store(ids + row * best + rank, found.to(tl.int64))
        tl.store(behind + row * best + rank, (first - score).to(tl.float32))
        lowest, last = high, found


def draw(logits: Tensor, drawings: Tensor, ids: Tensor, behind: Tensor) -> None:
    """Draws a token for each row, and the ones that come closest.

    Args:
        logits: Of any floating-point type, `[N, V]`.
        drawings: See `drawings.packed`; of a temperature of 0 the likeliest.
        ids: Where the tokens go, the best first, of equally good ones the lowest; -1 where no more
            survive. int64 `[N, best]`.
        behind: Where it goes how much less their scores are than the best; float32 `[N, best]`.
    """
    rows, vocab = logits.shape
    scaled = torch.empty_like(logits, dtype=torch.float32)
    places = torch.empty_like(logits, dtype=torch.int64)
    _score[(rows, triton.cdiv(vocab, 4 * _QUADS))](
        logits, drawings, scaled, places, vocab, QUADS=_QUADS
    )
    _pick[(rows,)](
        scaled,
        places,
        drawings,
        ids,
        behind,
        ids.shape[1],
        vocab,
        TOKENS=min(_TOKENS, triton.next_power_of_2(vocab)),
        num_warps=_WARPS,
    )
