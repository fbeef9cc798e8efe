"""Whether the kernels compute what torch does on the device at hand, and rows by themselves.

They are compiled where they run, by a compiler and for a device that nobody tried together, maybe.
A wrong or missing kernel shall cost speed, not a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.cuda import reference
from common.model.cuda.attention import Attention
from common.model.cuda.draw import draw
from common.model.cuda.drawings import packed
from common.model.cuda.experts import Experts
from common.model.cuda.keys import Keys, lay_out, tile_rows
from common.model.cuda.products import RoundedProduct
from common.model.cuda.rowwise import RmsNorm, Turn, gated
from common.model.linear import TiledProduct
from common.model.llama import Curve, Gate, Linear, Llama, Mixture, Mlp
from common.model.quantized import round_weight
from common.model.row import Row
from common.model.sampling import sample
from common.model.segment import Segment
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams

_PAGE, _PAGES = 16, 96
_POSITION = 1_100
"""Where the tree stands: behind several stretches of keys, in the middle of a block."""

_CHAIN = (0, 1, 2, 3)
_OUTPUTS = 48
_EXPERTS, _CHOSEN, _INNER = 5, 2, 144
_GELU = Gate(Curve.GELU)
_DRAWS = 48
_VOCAB = 5008
"""A multiple of 16, as those of models are: kernels are compiled for such."""


class Shape(NamedTuple):
    """Of a model."""

    heads: int
    """Query heads."""
    kv_heads: int
    """Key/value heads."""
    size: int
    """Of a head."""
    hidden: int
    """Of a hidden state."""
    experts: bool = False
    """Whether it has experts."""
    sinks: bool = False
    """Whether its heads have sinks."""
    gate: Gate = Gate()
    """Of its feed-forward parts."""
    grows: bool = False
    """Whether queries grow with their position."""
    softcap: float | None = None
    """Of scores of attention."""
    norms_values: bool = False
    """Whether its values are normed."""
    shares: bool = False
    """Whether some of its layers make queries alone."""
    tile_rows: int | None = None
    """Rows of a tile of attention; None for as many as there is room for."""

    @classmethod
    def of(cls, model: Llama) -> list[Shape]:
        """Those of a model's layers."""
        return [
            cls(
                model.heads,
                shape.kv_heads,
                shape.key_size,
                model.hidden,
                experts=model.has_experts,
                sinks=model.has_sinks,
                gate=model.gate,
                grows=model.growth is not None,
                softcap=model.softcap,
                norms_values=model.norms_values,
                shares=bool(model.seen_of),
                tile_rows=min(tile_rows(model.heads, each.kv_heads) for each in model.shapes),
            )
            for shape in dict.fromkeys(model.shapes)
        ]


def fault(shape: Shape, dtype: torch.dtype, device: torch.device) -> str:
    """Tries the kernels.

    Args:
        shape: Of the model they are for.
        dtype: Of its weights and cache.
        device: Where they run.

    Returns:
        What is wrong, or nothing.
    """
    try:
        problem = _of_attention(shape, dtype, device) or _of_rows(shape, dtype, device)
        return problem or (_of_experts(shape, dtype, device) if shape.experts else "")
    except Exception as error:  # a compiler that is missing, a device that is too small, …
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def fault_of_draws(device: torch.device) -> str:
    """Tries what draws tokens, against the CPU; see `fault`.

    Where bits decide a draw both may differ, and so a few of many do not count.
    """
    params = [
        SamplingParams(temperature=0.8, seed=1 << 63),
        SamplingParams(temperature=0.8, top_p=0.9, seed=1),
        SamplingParams(temperature=1.2, top_k=40, min_p=0.02, seed=2),
        SamplingParams(temperature=0.8, repetition_penalty=3.0, seed=3),
        SamplingParams(logit_bias={9: 40.0}),
    ]
    generator = torch.Generator().manual_seed(2)
    seen = torch.rand(_VOCAB, generator=generator) < 0.9
    rows = [Row(params[at % len(params)], 7 * at, seen, (at,)) for at in range(_DRAWS)]
    mask = seen.to(device)
    for dtype in (torch.float32, torch.bfloat16):
        logits = (torch.randn(_DRAWS, _VOCAB, generator=generator) * 3).to(dtype)
        try:
            drawings = packed([row._replace(seen=mask).drawing for row in rows]).to(device)
            ids = torch.empty(_DRAWS, 1, dtype=torch.int64, device=device)
            draw(logits.to(device), drawings, ids, torch.empty_like(ids, dtype=torch.float32))
        except Exception as error:  # as above
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        other = int((ids[:, 0].cpu() != sample(logits, rows)).sum())
        if other > _DRAWS // 16:
            return f"{other} of {_DRAWS} draws are others"
    return ""


def _of_attention(shape: Shape, dtype: torch.dtype, device: torch.device) -> str:
    """A tree beside another text, and its first path alone."""
    heads, kv_heads, size, scale = *shape[:3], shape.size**-0.5
    slots = np.random.default_rng(0).permutation(np.arange(1, _PAGES))[:, None] * _PAGE
    table = (slots + np.arange(_PAGE)).ravel()
    tree = TokenTree.chain(_CHAIN[0], _CHAIN[1:])
    for path in ((4, 5), (1, 6, 7), (1, 2, 8)):
        tree.add_path(path)
    branches = Segment(tree.ids, _POSITION, table[10 * _PAGE :], wanted=(), tree=tree)
    beside = Segment((1, 2), 90, table[: 10 * _PAGE], wanted=())

    # One head of each group looks for keys that the tree's rows alone have: who sees another path
    # than its own is far off, in bfloat16, too.
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(_PAGE * _PAGES, kv_heads, 2 * size, generator=generator)
    queries = torch.randn(len(tree) + 2, heads, size, generator=generator)
    sought = torch.randn(size, generator=generator)
    queries[:, :: heads // kv_heads] = sought
    cache[branches.row_slots, :, :size] = 2 * sought
    cache, queries = cache.to(device, dtype), queries.to(device, dtype)
    sinks = torch.linspace(0, 4, heads, device=device) if shape.sinks else None

    attention = Attention(heads, kv_heads, size, scale, None, sinks, shape.softcap)
    keys, words = _laid_out([branches, beside], shape, device)
    asked = (queries, cache, words, keys.size, _PAGE)
    expected = reference.attend(*asked, scale=scale, sinks=sinks, softcap=shape.softcap)
    found = attention(queries.clone(), cache, words, keys.size, _PAGE)
    off = (found.float() - expected).abs().flatten(1).amax(1)
    most = _error(dtype) * expected.abs().flatten(1).amax(1)
    if not bool((off <= most).all()):
        return f"attention is off by {float(off.max()):.2g}"

    chain = Segment(_CHAIN, _POSITION, table[10 * _PAGE :], wanted=())
    keys, words = _laid_out([chain], shape, device)
    alone = attention(queries[: len(_CHAIN)].clone(), cache, words, keys.size, _PAGE)
    return "" if torch.equal(alone, found[: len(_CHAIN)]) else "rows influence each other"


def _error(dtype: torch.dtype) -> float:
    """Of a result, by the largest; float32 sums in another order are further apart than a step."""
    return max(2 * torch.finfo(dtype).eps, 1e-5)


def _laid_out(batch: Sequence[Segment], shape: Shape, device: torch.device) -> tuple[Keys, Tensor]:
    rows = shape.tile_rows or tile_rows(shape.heads, shape.kv_heads)
    keys = lay_out(batch, page=_PAGE, tile_rows=rows, row_step=1)
    return keys, torch.from_numpy(keys.words).to(device)


def _of_rows(shape: Shape, dtype: torch.dtype, device: torch.device) -> str:
    """Norm, rotary embedding, activation and rounded weights, of some rows."""
    heads, kv_heads, size, hidden = shape[:4]
    _, words = _laid_out([Segment([1] * 16, 5, np.arange(16, 64), wanted=())], shape, device)
    generator = torch.Generator().manual_seed(1)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(device, dtype)

    x, factors, weight = random(16, hidden), random(hidden), random(_OUTPUTS, hidden)
    qkv = random(16, (heads + 2 * kv_heads) * size)
    angles = torch.arange(64.0, device=device)[:, None].repeat(1, size // 2) / 40
    table = angles.cos(), angles.sin()
    cache = torch.zeros(64, kv_heads, 2 * size, device=device, dtype=dtype)
    growth = torch.linspace(1, 2, len(angles), device=device) if shape.grows else None
    turn = Turn(heads, kv_heads, size, None, 1e-6, norms_values=shape.norms_values)
    turned = turn(qkv, table, growth, words, cache)
    alone = turned
    if shape.shares:
        turn = Turn(heads, 0, size, None, 1e-6, norms_values=shape.norms_values)
        alone = turn(qkv[:, : heads * size].contiguous(), table, growth, words, cache[:, :0])

    wide = qkv.view(16, -1, size).float()
    at = torch.arange(5, 21, device=device)
    first, second = wide.chunk(2, dim=2)
    cos, sin = (part[at][:, None] for part in table)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)
    if growth is not None:
        rotated[:, :heads] *= growth[at][:, None, None]
    gate, up = x.float().chunk(2, dim=1)
    rounded, scale = round_weight(weight)
    values = wide[:, -kv_heads:]
    if shape.norms_values:
        values = F.rms_norm(values, (size,), eps=1e-6)
    stored = torch.cat((rotated[:, heads:-kv_heads], values), dim=2)
    pairs = {
        "norm": (RmsNorm(factors, 1e-6)(x), F.rms_norm(x.float(), (hidden,)) * factors.float()),
        "rotary embedding": (turned, rotated[:, :heads]),
        "rotary embedding of queries alone": (alone, rotated[:, :heads]),
        "keys and values": (cache[16 + at], stored),
        "SiLU": (gated(x, Gate()), reference.gated(gate, up, Gate())),
        "GELU": (gated(x, _GELU), reference.gated(gate, up, _GELU)),
        "product": (RoundedProduct(weight, None)(x), x.float() @ (rounded * scale[:, None]).T),
    }
    found = (_off(name, *pair, dtype) for name, pair in pairs.items())
    return next(filter(None, found), "")


def _off(name: str, found: Tensor, expected: Tensor, dtype: torch.dtype) -> str:
    """What is said of a result that is too far from what was expected."""
    off, most = (float(part.abs().max()) for part in (found.float() - expected, expected))
    return "" if off <= _error(dtype) * most else f"{name} is off by {off:.2g}"


def _of_experts(shape: Shape, dtype: torch.dtype, device: torch.device) -> str:
    """Experts of which rows take some, beside what all take."""
    rows, hidden = 16, shape.hidden
    keys, words = _laid_out([Segment([1] * rows, 5, np.arange(16, 64), wanted=())], shape, device)
    generator = torch.Generator().manual_seed(3)

    def random(*sizes: int) -> Tensor:
        numbers: Tensor = torch.randn(sizes, generator=generator) / sizes[-1] ** 0.5
        return numbers.to(device, dtype)

    x, beside = (random(rows, hidden) * hidden**0.5 for _ in range(2))
    router = random(_EXPERTS, hidden)
    gate_up, down = random(_EXPERTS, 2 * _INNER, hidden), random(_EXPERTS, hidden, _INNER)
    biased = shape.gate.curve is Curve.CLAMPED  # as those of such models are
    if biased:
        gate_up *= shape.gate.limit  # some of what it makes is beyond
    biases = [random(_EXPERTS, size) * biased for size in (2 * _INNER, hidden)]
    first, last = (
        [Linear(*each) for each in zip(weight, bias if biased else [None] * _EXPERTS, strict=True)]
        for weight, bias in zip((gate_up, down), biases, strict=True)
    )
    mixture = Mixture(
        router=Linear(router, None),
        favours=None,
        experts=list(map(Mlp, first, last)),
        shared=None,
        chosen=_CHOSEN,
        sigmoid=False,
        summed=True,
        scale=1.0,
    )
    make = partial(TiledProduct, tile=rows)
    chances = make(router.float(), None)(x.float()).softmax(1)
    weights, chosen = (part[:, :_CHOSEN] for part in chances.sort(stable=True, descending=True))
    weights = weights / weights.sum(1, keepdim=True)
    shares = torch.zeros_like(chances).scatter(1, chosen, weights)
    for rounded in (False, True):
        wide = [_rounded(each) if rounded else each.float() for each in (gate_up, down)]
        both = torch.einsum("eih,nh->nei", wide[0], x.float()) + biases[0]
        gate, up = both.chunk(2, dim=2)
        opened = reference.gated(gate, up, shape.gate)
        given = torch.einsum("ehi,nei->neh", wide[1], opened) + biases[1]  # by all experts
        expected = torch.einsum("ne,neh->nh", shares, given) + beside.float()
        found = Experts(mixture, make, shape.gate, rounded=rounded)(x, words, keys.size, beside)
        if problem := _off("a mixture of experts", found, expected, dtype):
            return problem
    return ""


def _rounded(matrices: Tensor) -> Tensor:
    """What matrices are worth when they were rounded."""
    pairs = (round_weight(matrix) for matrix in matrices)
    return torch.stack([steps * scale[:, None] for steps, scale in pairs])
