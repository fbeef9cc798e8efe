"""What the host has a device do between passes comes to what it would by itself."""

from __future__ import annotations

import pytest
import torch

from common.model.kv_cache import KvPool, LayerShape
from common.model.output import rows_of
from common.model.seen import mark, seen

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_moves_are_those_of_the_processor() -> None:
    """Of the layers that are to be moved, whichever of them lie in one tensor."""
    shapes = [LayerShape(2, 8, 8)] * 3 + [LayerShape(1, 8, 4)] * 2 + [LayerShape(1, 8, 4, spare=3)]
    pools = [
        KvPool(shapes, blocks=3, block_tokens=4, dtype=torch.bfloat16, device=torch.device(on))
        for on in ("cuda", "cpu")
    ]
    for pool in pools:
        for number, cache in enumerate(pool.layers):
            values = 100 * number + torch.arange(len(cache))
            cache.copy_(values[:, None, None].expand(cache.shape))
    for layers in (2, 3, 4, 5, 6):
        for pool in pools:
            pool.move([(8, 4), (4, 5), (9, 6)], layers)
        for cache, expected in zip(*(pool.layers for pool in pools), strict=True):
            assert torch.equal(cache.cpu(), expected)


def test_ids_are_marked_as_on_the_processor() -> None:
    masks = [seen([3, 5, 3], 64, torch.device(on)) for on in ("cuda", "cpu")]
    for ids in ([7], [9, 5, 9, 63], []):
        for mask in masks:
            mark(mask, ids)
        assert torch.equal(masks[0].cpu(), masks[1])


def test_rows_of_a_pass_are_taken_as_on_the_processor() -> None:
    found = torch.randn(6, 40, dtype=torch.bfloat16)
    for at in ([], [2, 3], [0, 2, 5], [4, 1, 4]):
        assert torch.equal(rows_of(found.to("cuda"), at).cpu(), rows_of(found, at))
