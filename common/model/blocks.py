"""Who holds which block of the key/value cache: counts, prefix reuse and eviction.

Owns no tensors. A block holds `block_tokens` consecutive positions of one sequence. Full
blocks of committed tokens are published under a hash of everything up to their end, so that
a later sequence with the same beginning takes them instead of computing them again. Blocks
nobody holds stay published until they are the least recently used and space is needed.

Invariant, checked by `check()`: free + cached + held = total.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence


def chain(parent: bytes, ids: Sequence[int], block_tokens: int) -> Iterator[bytes]:
    """Hashes of the full blocks of a text, one after the other: each of all up to its end.

    Args:
        parent: Hash of the block before; for the first one a salt that separates tenants.
        ids: Token ids; those that fill no block are left out.
        block_tokens: Positions in a block.
    """
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        block = array("I", ids[start : start + block_tokens]).tobytes()
        parent = hashlib.blake2b(block, key=parent, digest_size=16).digest()
        yield parent


class BlockManager:
    """Hands out the blocks of one pool.

    Args:
        count: Blocks in the pool.
        block_tokens: Positions in a block.
    """

    def __init__(self, count: int, block_tokens: int) -> None:
        self.count = count
        self.block_tokens = block_tokens
        self._free = list(range(count - 1, -1, -1))
        self._refs = [0] * count
        self._hash_of: list[bytes | None] = [None] * count
        self._block_of: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # unheld but published, oldest first

    @property
    def available(self) -> int:
        """Blocks that `allocate` could hand out: free ones and evictable ones."""
        return len(self._free) + len(self._cached)

    @property
    def held(self) -> int:
        """Blocks some sequence holds."""
        return self.count - self.available

    def sole(self, blocks: Sequence[int]) -> int:
        """How many of some blocks only one holds, and would free."""
        return sum(self._refs[block] == 1 for block in blocks)

    def allocate(self, n: int) -> list[int] | None:
        """Takes `n` blocks, evicting the least recently used cached ones.

        Returns:
            Block indices, or None (and nothing changes) where fewer than `n` are available.
        """
        if n > self.available:
            return None
        return [self._take() for _ in range(n)]

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Takes the published blocks of the longest known prefix.

        Args:
            hashes: Chain hashes of a sequence's full blocks, in order.

        Returns:
            Blocks for the first of them, now held by the caller.
        """
        found = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            if self._refs[block] == 0:
                del self._cached[block]
            self._refs[block] += 1
            found.append(block)
        return found

    def publish(self, block: int, digest: bytes) -> None:
        """Makes a held, full block of committed tokens available to others.

        Where another block already carries the same content that one stays the public one.
        """
        assert self._refs[block] > 0, "published blocks are held"
        if self._hash_of[block] is None and digest not in self._block_of:
            self._hash_of[block] = digest
            self._block_of[digest] = block

    def forget(self, digests: Sequence[bytes]) -> None:
        """Frees published blocks that nobody holds; those that are held stay as they are."""
        for digest in digests:
            block = self._block_of.get(digest)
            if block is not None and block in self._cached:
                del self._cached[block]
                self._unpublish(block)
                self._free.append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Gives blocks back; published ones stay until evicted, the last of a sequence first."""
        for block in reversed(blocks):
            assert self._refs[block] > 0, "released twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                if self._hash_of[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def check(self) -> None:
        """Asserts that every block is exactly one of free, cached and held."""
        held = sum(1 for refs in self._refs if refs > 0)
        assert len(self._free) + len(self._cached) + held == self.count
        assert len(set(self._free) | set(self._cached)) == len(self._free) + len(self._cached)
        assert all(self._hash_of[block] is not None for block in self._cached)

    def _unpublish(self, block: int) -> None:
        digest = self._hash_of[block]
        assert digest is not None
        del self._block_of[digest]
        self._hash_of[block] = None

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._unpublish(block)
        self._refs[block] = 1
        return block
