"""The tensors of a cache: layers of one shape lie in one, and moves are of each on its own."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.model.kv_cache import KvPool, LayerShape

BLOCKS, BLOCK_TOKENS = 3, 4
SLOTS = (BLOCKS + 1) * BLOCK_TOKENS

_SHAPES = st.sampled_from(
    [LayerShape(2, 3, 3), LayerShape(1, 4, 2), LayerShape(2, 3, 3, spare=5)]
)  # the first and the last differ in slots alone

_MOVES = st.integers(1, SLOTS).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, SLOTS - 1), min_size=count, max_size=count),
        st.permutations(range(SLOTS)).map(lambda targets: targets[:count]),
    )
)


def _pool(shapes: list[LayerShape]) -> KvPool:
    return KvPool(
        shapes,
        blocks=BLOCKS,
        block_tokens=BLOCK_TOKENS,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


@settings(max_examples=200)
@given(shapes=st.lists(_SHAPES, min_size=1, max_size=6), moves=_MOVES, data=st.data())
def test_moves_are_those_of_each_layer(
    shapes: list[LayerShape], moves: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    """Of the first ones, from what was there before the first move; others stay as they are."""
    pool, (sources, targets) = _pool(shapes), moves
    for number, cache in enumerate(pool.layers):
        cache.copy_(1000 * number + torch.arange(cache.numel()).view(cache.shape))
    expected = [cache.clone() for cache in pool.layers]
    layers = data.draw(st.integers(0, len(shapes)))
    for cache in expected[:layers]:
        cache[targets] = cache[sources]
    pool.move([*zip(sources, targets, strict=True)], layers)
    for cache, wanted in zip(pool.layers, expected, strict=True):
        assert torch.equal(cache, wanted)


@given(shapes=st.lists(_SHAPES, min_size=1, max_size=6))
def test_layers_of_one_shape_lie_behind_each_other(shapes: list[LayerShape]) -> None:
    """So a move is the same few calls, however many layers there are."""
    layers = _pool(shapes).layers
    for shape, cache in zip(shapes, layers, strict=True):
        assert cache[0].numel() == shape.slot_size
        assert len(cache) == SLOTS + shape.spare
        assert cache.is_contiguous()
        assert not cache.any()
    for (one, cache), (other, behind) in pairwise(zip(shapes, layers, strict=True)):
        if one == other:
            assert behind.data_ptr() == cache.data_ptr() + cache.nbytes
