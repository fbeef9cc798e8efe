"""Triton's kernels compute what torch does, and a row's bits whatever stands beside it.

On a GPU where there is one; elsewhere Triton interprets them, which shows what they compute but not
how a compiler rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.model.cuda import reference
from common.model.cuda.keys import Keys, lay_out, section, tile_rows
from common.model.linear import TiledProduct
from common.model.llama import Curve, Gate
from common.model.quantized import round_weight
from common.model.segment import Segment
from common.model.tree import TokenTree
from tests.unit.common.model.batches import PAGE, PAGES, segments

pytest.importorskip("triton")

from common.model.cuda import attention as module
from common.model.cuda.attention import Attention
from common.model.cuda.products import RoundedProduct
from common.model.cuda.rowwise import RmsNorm, Turn, cap, gated

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLOSE = 3e-6 if DEVICE.type == "cpu" else 1e-4
"""Of float32 numbers around 1; a device's exponential is an approximation."""

HEADS = [(4, 2, 12), (6, 2, 16), (3, 3, 10), (8, 1, 32)]
"""Query heads, key/value heads and their size."""


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def _cache(kv_heads: int, size: int, pages: int = PAGES) -> Tensor:
    cache = _random(pages * PAGE, kv_heads, 2 * size)
    cache[0] = 0
    return cache


def _laid_out(batch: Sequence[Segment], heads: int, kv_heads: int) -> tuple[Keys, Tensor]:
    rows = tile_rows(heads, kv_heads)
    keys = lay_out(batch, page=PAGE, tile_rows=rows, row_step=2)
    return keys, torch.from_numpy(keys.words).to(DEVICE)


class _Launches:
    """A kernel, and what it was launched with."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.arguments: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **known: Any) -> None:
            self.arguments.append(arguments)
            self._kernel[grid](*arguments, **known)

        return launch


@settings(max_examples=6)
@given(
    segments(),
    st.sampled_from(HEADS),
    st.sampled_from([None, 1, 40, 100]),
    st.booleans(),
    st.sampled_from([None, 1.5]),
)
def test_attention_is_that_of_torch(
    batch: list[Segment],
    shape: tuple[int, int, int],
    window: int | None,
    sunk: bool,
    softcap: float | None,
) -> None:
    heads, kv_heads, size = shape
    keys, words = _laid_out(batch, heads, kv_heads)
    cache, queries = _cache(kv_heads, size), _random(keys.size.rows, heads, size, seed=1)
    sinks = 3 * _random(heads, seed=2) if sunk else None
    kept = {"window": window, "sinks": sinks, "softcap": softcap}
    expected = reference.attend(queries, cache, words, keys.size, PAGE, scale=0.3, **kept)
    attention = Attention(heads, kv_heads, size, 0.3, **kept)
    found = attention(queries.clone(), cache, words, keys.size, PAGE)
    real = sum(len(part.ids) for part in batch)
    assert (found - expected)[:real].abs().max() < CLOSE


def test_partial_sums_are_kept_of_some_tiles_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, kv_heads, size = 4, 2, 16
    slots = np.arange(PAGE, 25 * PAGE)
    batch = [Segment(range(12), 300, slots, wanted=()), Segment(range(5), 9, slots, wanted=())]
    keys, words = _laid_out(batch, heads, kv_heads)
    cache, queries = _cache(kv_heads, size), _random(keys.size.rows, heads, size, seed=1)
    attention = Attention(heads, kv_heads, size, 0.3, None)
    whole = attention(queries.clone(), cache, words, keys.size, PAGE)
    launches = _Launches(module._attend)
    monkeypatch.setattr(module, "_attend", launches)
    monkeypatch.setattr(module, "_MOST_PARTS", 200)
    assert torch.equal(attention(queries.clone(), cache, words, keys.size, PAGE), whole)
    places = [arguments[2].data_ptr() for arguments in launches.arguments]
    assert len(places) > 1
    assert len(set(places)) == 1, "there is room for those of one time only"


@pytest.mark.parametrize("position", [255, 256, 8_191, 8_192, 10_300])
def test_long_texts_are_cut_where_every_text_is(position: int) -> None:
    """With short stretches and long ones."""
    heads, kv_heads, size = 2, 1, 8
    slots = np.arange(PAGE, PAGE + position + PAGE)
    keys, words = _laid_out([Segment([1], position, slots, wanted=[0])], heads, kv_heads)
    cache = _cache(kv_heads, size, pages=position // PAGE + 4)
    queries = _random(keys.size.rows, heads, size, seed=1)
    expected = reference.attend(queries, cache, words, keys.size, PAGE, scale=0.3)
    found = Attention(heads, kv_heads, size, 0.3, None)(queries, cache, words, keys.size, PAGE)
    assert (found - expected)[0].abs().max() < CLOSE


@pytest.mark.parametrize("window", [None, 90])
@pytest.mark.parametrize("start", [250, 700])
def test_trees_and_windows_across_stretches(
    start: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no program wrote is not read."""
    heads, kv_heads, size = 4, 2, 16
    tree = TokenTree.chain(0, range(1, 12))
    tree.add_path((20, 21))
    tree.add_path((1, 2, 3, 4, 5, 6, 7, 30, 31, 32))
    slots = np.arange(PAGE, 50 * PAGE)
    branches = Segment(tree.ids, start, slots, tree=tree, wanted=())
    keys, words = _laid_out([branches], heads, kv_heads)
    cache, queries = _cache(kv_heads, size), _random(keys.size.rows, heads, size, seed=1)
    expected = reference.attend(queries, cache, words, keys.size, PAGE, scale=0.3, window=window)
    empty = Tensor.new_empty

    def unwritten(self: Tensor, *shape: Any, **options: Any) -> Tensor:
        made = empty(self, *shape, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(Tensor, "new_empty", unwritten)
    attention = Attention(heads, kv_heads, size, 0.3, window)
    found = attention(queries.clone(), cache, words, keys.size, PAGE)
    assert (found - expected)[: len(tree)].abs().max() < CLOSE


def test_a_sink_is_one_more_score_of_which_nothing_comes() -> None:
    """Be it next to none, or more than all of the others."""
    heads, kv_heads, size = 6, 2, 8
    sinks = torch.tensor([float("-inf"), -80.0, -1.0, 0.0, 3.0, 80.0], device=DEVICE)
    slots = np.arange(PAGE, 3 * PAGE)
    keys, words = _laid_out([Segment([1], 20, slots, wanted=())], heads, kv_heads)
    cache, queries = _cache(kv_heads, size), _random(keys.size.rows, heads, size, seed=1)
    seen = cache[PAGE : PAGE + 21].repeat_interleave(3, 1).transpose(0, 1)  # [H, W, 2 D]
    key, value = seen.split(size, 2)
    scores = (key @ queries[0][..., None]).squeeze(2) * 0.3
    weights = torch.cat((scores, sinks[:, None]), 1).softmax(1)[:, :-1]
    expected = (weights[:, None] @ value).squeeze(1)
    attention = Attention(heads, kv_heads, size, 0.3, None, sinks)
    found = attention(queries, cache, words, keys.size, PAGE)[0]
    assert (found - expected).abs().max() < CLOSE


@pytest.mark.parametrize("window", [None, 70])
def test_attention_of_a_row_has_its_bits_in_any_batch(window: int | None) -> None:
    """Alone, as a chain, and in a tree with others and beside another text."""
    heads, kv_heads, size = 4, 2, 16
    cache, start = _cache(kv_heads, size), 290
    slots = np.random.default_rng(0).permutation(np.arange(1, 40))[:, None] * PAGE
    table = (slots + np.arange(PAGE)).ravel()
    own, other = table[:400], table[400:600]
    queries = _random(64, heads, size, seed=1)
    sinks = _random(heads, seed=2) if window else None
    attention = Attention(heads, kv_heads, size, 0.3, window, sinks)

    def attended(batch: Sequence[Segment], picked: Sequence[int]) -> Tensor:
        keys, words = _laid_out(batch, heads, kv_heads)
        some = queries.new_zeros(keys.size.rows, heads, size)
        some[: len(picked)] = queries[list(picked)]
        return attention(some, cache, words, keys.size, PAGE)[: len(picked)]

    chain = Segment([1, 2, 3, 4], start, own, wanted=())
    alone = torch.cat(
        [attended([Segment([1], start + at, own, wanted=())], [at]) for at in range(len(chain.ids))]
    )
    assert torch.equal(attended([chain], range(4)), alone)

    tree = TokenTree.chain(1, (2, 3, 4))
    tree.add_path((9, 9))
    tree.add_path((2, 8))
    branches = Segment(tree.ids, start, own, tree=tree, wanted=())
    beside = Segment([5] * 9, 100, other, wanted=())
    rows = [*range(4), *range(20, 20 + len(tree) - 4), *range(40, 49)]
    both = attended([branches, beside], rows)
    assert torch.equal(both[:4], alone)
    assert torch.equal(attended([beside], range(40, 49)), both[len(tree) :])
    turned = attended([beside, branches], [*range(40, 49), *rows[: len(tree)]])
    assert torch.equal(turned[9:], both[: len(tree)])


@pytest.mark.parametrize("size", [48, 100, 128])
def test_norm(size: int) -> None:
    x, weight = _random(5, size), _random(size, seed=1)
    normed = RmsNorm(weight, 1e-5)(x)
    expected = torch.nn.functional.rms_norm(x, (size,), weight, 1e-5)
    assert (normed - expected).abs().max() < 1e-5
    assert torch.equal(RmsNorm(weight, 1e-5)(x[2:3]), normed[2:3])


@pytest.mark.parametrize(("normed", "grows"), [(False, True), (True, False)])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), HEADS)
def test_turn_writes_keys_and_values_and_leaves_queries(
    heads: int, kv_heads: int, size: int, normed: bool, grows: bool
) -> None:
    slots = np.arange(PAGE, 5 * PAGE)[::-1].copy()
    batch = [Segment([1, 2, 3], 7, slots, wanted=()), Segment([4], 2, slots[32:], wanted=())]
    keys, words = _laid_out(batch, heads, kv_heads)
    rows = keys.size.rows
    qkv = _random(rows, (heads + 2 * kv_heads) * size)
    angles = _random(12, size // 2, seed=1)
    table = angles.cos(), angles.sin()
    norms = 1 + _random(2, size, seed=2)
    cache = torch.zeros(6 * PAGE, kv_heads, 2 * size, device=DEVICE)
    given = (norms[0], norms[1]) if normed else None
    growth = 1 + _random(12, seed=3).abs() if grows else None
    queries = Turn(heads, kv_heads, size, given, 1e-5)(qkv, table, growth, words, cache)

    parts = qkv.view(rows, -1, size)
    turning = parts[:, : heads + kv_heads]
    if normed:
        weights = norms.repeat_interleave(torch.tensor([heads, kv_heads], device=DEVICE), dim=0)
        turning = torch.nn.functional.rms_norm(turning, (size,), None, 1e-5) * weights
    at = section(words, keys.size, "positions")
    first, second = turning.chunk(2, dim=2)
    cos, sin = (part[at][:, None] for part in table)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)
    if growth is not None:
        turned[:, :heads] *= growth[at][:, None, None]
    assert (queries - turned[:, :heads]).abs().max() < 1e-5
    stored = cache[section(words, keys.size, "slots")[:4]]
    assert (stored[..., :size] - turned[:4, heads:]).abs().max() < 1e-5
    assert torch.equal(stored[..., size:], parts[:4, heads + kv_heads :])
    assert not cache[0].any(), "the slot of no key stays zero"


@pytest.mark.parametrize("curve", Curve)
def test_gates(curve: Curve) -> None:
    both = 5 * _random(3, 2 * 1300)
    by = Gate(curve, 1.7, 4.0)
    expected = reference.gated(*both.chunk(2, dim=1), by)
    assert (gated(both, by) - expected).abs().max() < 2e-5


@pytest.mark.parametrize(("outputs", "inputs"), [(96, 320), (33, 100), (64, 128)])
def test_rounded_weights_are_widened_as_they_are_read(outputs: int, inputs: int) -> None:
    weight, bias = _random(outputs, inputs), _random(outputs, seed=1)
    x, other = _random(32, inputs, seed=2), _random(32, outputs, seed=3)
    rounded, scale = round_weight(weight)
    expected = x @ (rounded.float() * scale[:, None]).T
    assert (RoundedProduct(weight, None)(x) - expected).abs().max() < 1e-4
    product = RoundedProduct(weight, bias)
    assert (product.plus(x, other) - (expected + bias + other)).abs().max() < 1e-4
    assert torch.equal(product(x)[16:], product(x[16:]))


def test_tiles_of_rows_add_up() -> None:
    weight, bias = _random(24, 40), _random(24, seed=1)
    x, other = _random(8, 40, seed=2), _random(8, 24, seed=3)
    product = TiledProduct(weight, bias, tile=4)
    expected = x @ weight.T + bias
    assert (product(x) - expected).abs().max() < 1e-4
    expected += other
    added = product.plus(x, other)
    assert (added - expected).abs().max() < 1e-4
    assert added.data_ptr() == other.data_ptr(), "each layer's rows would be copied twice"


def test_numbers_are_kept_within_a_cap_each_by_itself() -> None:
    x = torch.cat((_random(6, 500) * 40, torch.tensor([[0.0, -1e30, 1e30, 30.0, math.nan] * 100])))
    expected, alone = torch.tanh(x / 30) * 30, x[3:4].clone()
    cap(x, 30.0)
    cap(alone, 30.0)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-4, equal_nan=True)
    assert torch.equal(alone, x[3:4])
