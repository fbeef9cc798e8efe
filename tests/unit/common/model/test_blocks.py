"""Blocks: whatever happens, each is exactly one of free, cached and held, and content is true."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ModelError
from common.model.blocks import BlockManager, chain, chain_hash
from common.model.kv_cache import KvLease, KvPool, LayerShape

SIZE = 4


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 30))
def test_leases_never_share_what_they_write(seed: int, count: int) -> None:
    """A model of the cache: each slot remembers the text written there."""
    draw = random.Random(seed)
    manager = BlockManager(count, SIZE)
    written: dict[int, tuple[int, ...]] = {}  # slot -> text up to and including its token
    live: list[tuple[KvLease, list[int]]] = []  # each with the tokens that it wrote
    for _ in range(60):
        if draw.random() < 0.5 or not live:
            text = [draw.randrange(2) for _ in range(draw.randint(1, 5 * SIZE))]
            lease = KvLease(manager)
            start = lease.reuse_prefix(text)
            assert start < len(text), "the last token is left to compute"
            assert start % SIZE == 0
            for at in range(start):
                assert written[int(lease.slots[at])] == tuple(text[: at + 1])
            if lease.reserve(len(text)):
                computed = draw.randint(start, len(text))
                for at in range(start, computed):
                    written[int(lease.slots[at])] = tuple(text[: at + 1])
                lease.publish(text, computed)
                live.append((lease, text[:computed]))
            else:
                lease.release()
        else:
            lease, _ = live.pop(draw.randrange(len(live)))
            lease.release()
        manager.check()
        for lease, text in live:
            for at in range(len(text)):
                assert written[int(lease.slots[at])] == tuple(text[: at + 1])
    for lease, _ in live:
        lease.release()
    manager.check()
    assert manager.held == 0


def test_salt_separates_tenants() -> None:
    manager = BlockManager(8, SIZE)
    text = list(range(9))
    mine = KvLease(manager, b"a")
    mine.reserve(9)
    mine.publish(text, 9)
    assert KvLease(manager, b"b").reuse_prefix(text) == 0
    again = KvLease(manager, b"a")
    assert again.reuse_prefix(text) == 8


def test_a_chain_goes_on_where_it_was_left() -> None:
    text = list(range(3 * SIZE + 1))
    whole = list(chain(b"salt", text, SIZE))
    assert whole[0] == chain_hash(b"salt", text[:SIZE])
    assert [whole[0], *chain(whole[0], text[SIZE:], SIZE)] == whole
    assert len(set(whole)) == 3


def test_the_oldest_cached_block_goes_first() -> None:
    manager = BlockManager(3, SIZE)
    for token in range(3):
        lease = KvLease(manager)
        lease.reserve(SIZE)
        lease.publish([token] * SIZE, SIZE)
        lease.release()
    assert manager.available == 3
    manager.allocate(1)
    found = [len(manager.match([chain_hash(b"", [token] * SIZE)])) for token in range(3)]
    assert found == [0, 1, 1]


def test_a_text_loses_its_last_block_first() -> None:
    manager, text = BlockManager(3, SIZE), list(range(3 * SIZE + 1))
    lease = KvLease(manager)
    lease.reserve(3 * SIZE)
    lease.publish(text, 3 * SIZE)
    lease.release()
    manager.allocate(1)
    assert KvLease(manager).reuse_prefix(text) == 2 * SIZE


def test_a_lease_that_was_released_publishes_again() -> None:
    manager, text = BlockManager(2, SIZE), list(range(2 * SIZE + 1))
    lease = KvLease(manager)
    for _ in range(2):
        lease.reserve(2 * SIZE)
        lease.publish(text, 2 * SIZE)
        lease.release()
    assert KvLease(manager).reuse_prefix(text) == 2 * SIZE


def test_more_than_there_is_changes_nothing() -> None:
    manager = BlockManager(3, SIZE)
    assert manager.allocate(4) is None
    assert manager.available == 3
    lease = KvLease(manager)
    assert not lease.reserve(4 * SIZE)
    assert lease.capacity == 0
    assert manager.allocate(3) is not None
    assert manager.available == 0


def test_a_lease_of_an_idle_cache_has_room_or_is_none() -> None:
    shapes, cpu = [LayerShape(1, 2, 2)], torch.device("cpu")
    pool = KvPool(shapes, blocks=3, block_tokens=SIZE, dtype=torch.float32, device=cpu)
    with pytest.raises(ModelError, match=f"no room for {3 * SIZE + 1} tokens"):
        pool.lease(3 * SIZE + 1)
    lease = pool.lease(2 * SIZE + 1)
    assert len(lease.slots) == 3 * SIZE
    lease.release()
    assert pool.blocks.held == 0


def test_releasing_twice_is_noticed() -> None:
    manager = BlockManager(2, SIZE)
    blocks = manager.allocate(1)
    assert blocks is not None
    manager.release(blocks)
    with pytest.raises(AssertionError, match="twice"):
        manager.release(blocks)
