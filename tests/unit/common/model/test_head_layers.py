"""Layers of a cache that belong to a head: they come and go with blocks, and no text sees them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from common.model import kernels
from common.model.kv_cache import KvLease, KvPool, LayerShape
from common.model.loader import load
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair
from tests.tiny_models import VOCAB

KV_BYTES = 1 << 20
BLOCK_TOKENS = 16
SPARE = 40
SHAPES = (LayerShape(2, 16, 16), LayerShape(1, 8, 8, spare=SPARE))


class Both(NamedTuple):
    """A model whose cache has a head's layers, and one whose has not."""

    headed: Runner
    plain: Runner


@pytest.fixture(params=["llama", "llama-torch", "phi"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Both:
    kind, _, how = request.param.partition("-")
    directory = str(tiny_models.save(kind, tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        if how == "torch":
            patch.setattr(kernels, "can_run", lambda model: False)
        one, other = (load(directory, dtype="float32", device="cpu") for _ in range(2))
    headed = Runner(one, kv_bytes=KV_BYTES, block_tokens=BLOCK_TOKENS, head_layers=SHAPES)
    return Both(headed, Runner(other, kv_bytes=KV_BYTES, block_tokens=BLOCK_TOKENS))


def _ids(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def test_they_are_in_the_bytes_of_the_cache(both: Both) -> None:
    headed, plain = (runner.pool for runner in both)
    slots = headed.slots
    assert [tuple(each.shape) for each in both.headed.head_caches] == [
        (slots, 2, 32),
        (slots + SPARE, 1, 16),
    ]
    assert all(each.dtype == torch.float32 for each in both.headed.head_caches)
    assert both.plain.head_caches == []
    assert len(headed.layers) == len(plain.layers) + len(SHAPES)
    held = sum(layer.nbytes for layer in headed.layers)
    own = plain.layers[0].nbytes // plain.slots * BLOCK_TOKENS * len(plain.layers)
    block = own + KvPool.block_bytes(SHAPES, BLOCK_TOKENS, torch.float32)
    assert held == slots // BLOCK_TOKENS * block + KvPool.spare_bytes(SHAPES, torch.float32)
    assert held <= KV_BYTES < held + block


def test_moves_leave_them(both: Both) -> None:
    headed = both.headed
    for cache in headed.pool.layers:
        cache.copy_(torch.arange(float(len(cache)))[:, None, None].expand(cache.shape))
    headed.move([(40, 50), (50, 60)])
    held = [cache[[50, 60], 0, 0].tolist() for cache in headed.pool.layers]
    assert held == [[40, 50]] * len(headed.model_caches) + [[50, 60]] * len(SHAPES)


def test_texts_are_as_without_them(both: Both) -> None:
    """Through the engine, which moves keys and reuses prefixes; whatever the head has there."""
    for cache in both.headed.head_caches:
        cache.fill_(float("nan"))
    first, second = (Pair.make(runner) for runner in both)
    for length, method in ((40, "plain"), (40, "lookahead"), (56, "ngram")):
        sampling = SamplingParams(temperature=0.8, seed=length)
        texts = [
            pair.generate(_ids(length), 24, sampling=sampling, method=method)
            for pair in (first, second)
        ]
        assert texts[0] == texts[1]
    assert all(bool(cache.isnan().all()) for cache in both.headed.head_caches)
    for runner in both:
        runner.pool.blocks.check()


def test_a_prefix_that_is_found_again_has_what_the_head_wrote(both: Both) -> None:
    ids = _ids(50)
    runner = both.headed
    lease = KvLease(runner.pool.blocks)
    assert lease.reserve(len(ids))
    slots = torch.from_numpy(lease.slots[: len(ids)])
    written = torch.arange(1.0, len(ids) + 1)
    for cache in runner.head_caches:
        cache[slots] = written[:, None, None].expand(-1, *cache.shape[1:])
    lease.publish(ids, len(ids))
    lease.release()

    Pair.make(runner).generate(_ids(20)[::-1], 5)  # another text meanwhile
    again = KvLease(runner.pool.blocks)
    found = again.reuse_prefix(ids)
    assert found == 48
    for cache in runner.head_caches:
        seen = cache[torch.from_numpy(again.slots[:found])]
        assert torch.equal(seen, written[:found, None, None].expand(seen.shape))
    again.release()
