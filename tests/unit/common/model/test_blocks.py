"""Blocks: whatever happens, each is exactly one of free, cached and held, and content is true."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import ModelError
from common.model.blocks import BlockManager, chain
from common.model.kv_cache import KvLease, KvPool, LayerShape

SIZE = 4


class _Text:
    """A text and its lease.

    Args:
        manager: Whose blocks.
        written: What each slot remembers: the text up to and including its token.
    """

    def __init__(self, manager: BlockManager, written: dict[int, tuple[int, ...]]) -> None:
        self.lease, self._written = KvLease(manager), written
        self.ids: list[int] = []
        self.computed = 0

    def begin(self) -> None:
        """Takes what others have published of it, as it does anew after a release."""
        self.computed = self.lease.reuse_prefix(self.ids)
        assert self.computed < len(self.ids), "the last token is left to compute"
        assert self.computed % SIZE == 0
        self.check()

    def compute(self, upto: int) -> bool:
        """Writes further tokens, and publishes what is full; False where there is no room."""
        if not self.lease.reserve(len(self.ids)):
            return False
        for at in range(self.computed, upto):
            self._written[int(self.lease.slots[at])] = tuple(self.ids[: at + 1])
        self.computed = upto
        self.lease.publish(self.ids, upto)
        return True

    def check(self) -> None:
        """Nobody has written over it."""
        for at in range(self.computed):
            assert self._written[int(self.lease.slots[at])] == tuple(self.ids[: at + 1])


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), count=st.integers(2, 30))
def test_leases_never_share_what_they_write(seed: int, count: int) -> None:
    """Texts that begin alike come, grow, are put off, go and are forgotten."""
    draw = random.Random(seed)
    manager = BlockManager(count, SIZE)
    written: dict[int, tuple[int, ...]] = {}
    live: list[_Text] = []
    for _ in range(60):
        what = draw.choice(["come", "come", "grow", "put off", "go", "forget"])
        if what == "come" or not live:
            text = _Text(manager, written)
        else:
            text = live.pop(draw.randrange(len(live)))
        if what in ("put off", "go"):
            text.lease.release()
        if what == "forget":
            manager.forget(list(chain(b"", text.ids, SIZE)))
        if what in ("come", "grow") or not text.ids:
            text.ids += [draw.randrange(2) for _ in range(draw.randint(1, 3 * SIZE))]
        if not text.lease.capacity and what != "go":
            text.begin()
        if what != "go":
            if text.compute(draw.randint(text.computed, len(text.ids))):
                live.append(text)
            else:
                text.lease.release()
        manager.check()
        for each in live:
            each.check()
    for each in live:
        each.lease.release()
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
    assert whole[:1] == [*chain(b"salt", text[:SIZE], SIZE)]
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
    found = [len(manager.match([*chain(b"", [token] * SIZE, SIZE)])) for token in range(3)]
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
