"""The key/value cache of one model, and each sequence's share of it.

`KvPool` owns the tensors: for each layer `[slots, kv heads, key size + value size]`, each key
beside its value, where slot = block * block_tokens + offset. Layers of one shape that follow each
other lie in one tensor. `KvLease` is one sequence's list of blocks: it says which slot holds which
absolute position. Two slots of an extra first block serve padding: one is always zero (keys that
are masked must still be finite), one takes writes that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import torch

from common.errors import ModelError
from common.model.blocks import BlockManager, chain
from common.model.pages import LargePages
from common.model.transfer import on_device

ZERO_SLOT = 0
"""Read for columns past the end of a sequence; never written."""

TRASH_SLOT = 1
"""Written by rows that are padding, or have ended: what it holds reaches no text."""

MAX_SALT_BYTES = 64
"""Longest salt of a lease, as hashing takes it."""


@dataclass(frozen=True)
class LayerShape:
    """Heads of one attention layer."""

    kv_heads: int
    """Key/value heads; 0 of a layer that keeps none, as it sees those of another."""
    key_size: int
    """Size of a key."""
    value_size: int
    """Size of a value."""
    spare: int = 0
    """Slots beyond those of blocks, for keys that belong to no position."""

    @property
    def slot_size(self) -> int:
        """Numbers of a slot: those of its keys and values."""
        return self.kv_heads * (self.key_size + self.value_size)


class KvPool:
    """The cache tensors of one model and the blocks they are cut into.

    Args:
        layers: Shape of each attention layer.
        blocks: Blocks to make room for.
        block_tokens: Positions in a block; at least 2.
        dtype: Of keys and values.
        device: Where they live.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = (blocks + 1) * block_tokens
        """Of each layer; the first block is padding."""
        shapes = [
            (self.slots + each.spare, each.kv_heads, each.key_size + each.value_size)
            for each in layers
        ]
        on_cpu = device.type == "cpu"
        zeros = LargePages().zeros if on_cpu else partial(torch.zeros, device=device)
        self._stacks = [
            zeros((len([*alike]), *shape), dtype=dtype) for shape, alike in groupby(shapes)
        ]  # [L, slots + spare, kv heads, key size + value size]
        self.layers = [layer for stack in self._stacks for layer in stack]
        """Of each the cache, `[slots + spare, kv heads, key size + value size]`."""
        self.blocks = BlockManager(blocks, block_tokens)

    @staticmethod
    def block_bytes(layers: Sequence[LayerShape], block_tokens: int, dtype: torch.dtype) -> int:
        """Bytes one block takes over all layers."""
        return sum(each.slot_size for each in layers) * block_tokens * dtype.itemsize

    @staticmethod
    def spare_bytes(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
        """Bytes that slots beyond those of blocks take over all layers."""
        return sum(each.spare * each.slot_size for each in layers) * dtype.itemsize

    def lease(self, tokens: int) -> KvLease:
        """Takes so many positions where nobody else needs any, as for a probe or a timing.

        Raises:
            ModelError: There are fewer.
        """
        lease = KvLease(self.blocks)
        if not lease.reserve(tokens):
            raise ModelError(f"the cache has no room for {tokens} tokens at once")
        return lease

    @torch.inference_mode()
    def move(self, moves: Sequence[tuple[int, int]], layers: int) -> None:
        """Copies keys and values between slots of the first layers.

        Layers of one tensor are moved together: on a device a launch takes longer than its copy.

        Args:
            moves: Given as (from, to); all are read first.
            layers: So many.
        """
        pairs = np.array(moves, dtype=np.int64).reshape(-1, 2).T  # [2, M]
        for stack in self._stacks:
            part = stack[:layers]
            layers -= len(part)
            if not len(part):
                break
            firsts = np.arange(len(part)) * part.shape[1]
            at = (pairs[:, None] + firsts[:, None]).reshape(2, -1)  # [2, L * M]
            rows = part.flatten(0, 1).flatten(1)  # [L * (slots + spare), numbers of a slot]
            if rows.device.type == "cpu":  # torch would do it by several threads, see `rows_of`
                numbers = rows.view(torch.uint8).numpy()
                numbers[at[1]] = numbers[at[0]]
            else:
                sources, targets = on_device(at, rows.device).unbind()
                rows.index_copy_(0, targets, rows.index_select(0, sources))


class KvLease:
    """The blocks of one sequence.

    Args:
        manager: Whose blocks.
        salt: Separates prefixes that must not be shared, such as tenants; up to `MAX_SALT_BYTES`.
    """

    def __init__(self, manager: BlockManager, salt: bytes = b"") -> None:
        self._manager = manager
        self._salt = salt
        self._blocks: list[int] = []
        self._hashes: list[bytes] = []  # of full blocks already hashed
        self._published = 0
        self._slots = np.empty(0, dtype=np.int64)

    @property
    def capacity(self) -> int:
        """Positions there is room for."""
        return len(self._blocks) * self._manager.block_tokens

    @property
    def sole_blocks(self) -> int:
        """Blocks that nobody else holds: what it would give back."""
        return self._manager.sole(self._blocks)

    @property
    def slots(self) -> np.ndarray:
        """Slot of each absolute position, `[capacity]`."""
        return self._slots

    def reuse_prefix(self, ids: Sequence[int]) -> int:
        """Takes published blocks for the beginning of `ids`; the lease must be empty.

        The last token is never reused: its logits are wanted.

        Returns:
            Tokens found.
        """
        assert not self._blocks, "prefix reuse comes first"
        full = (len(ids) - 1) // self._manager.block_tokens
        self._append(self._manager.match(self._extend_hashes(ids, full)[:full]))
        self._published = len(self._blocks)
        return self.capacity

    def reserve(self, tokens: int) -> bool:
        """Grows to at least `tokens` positions; False (and no change) where blocks ran out."""
        missing = -(-tokens // self._manager.block_tokens) - len(self._blocks)
        if missing <= 0:
            return True
        blocks = self._manager.allocate(missing)
        if blocks is None:
            return False
        self._append(blocks)
        return True

    def publish(self, ids: Sequence[int], computed: int) -> None:
        """Offers full blocks of committed tokens to later sequences.

        Args:
            ids: Committed ids.
            computed: How many of them have keys and values in the cache.
        """
        full = computed // self._manager.block_tokens
        if full > self._published:
            self._extend_hashes(ids, full)
            for index in range(self._published, full):
                self._manager.publish(self._blocks[index], self._hashes[index])
            self._published = full

    def release(self) -> None:
        """Gives all blocks back; the lease can be used again, for the same text or a longer one."""
        self._manager.release(self._blocks)
        self._blocks, self._published = [], 0
        self._slots = np.empty(0, dtype=np.int64)

    def _append(self, blocks: list[int]) -> None:
        size = self._manager.block_tokens
        first = (np.asarray(blocks, dtype=np.int64) + 1) * size
        self._slots = np.concatenate([self._slots, (first[:, None] + np.arange(size)).reshape(-1)])
        self._blocks.extend(blocks)

    def _extend_hashes(self, ids: Sequence[int], full: int) -> list[bytes]:
        size, known = self._manager.block_tokens, len(self._hashes)
        parent = self._hashes[-1] if self._hashes else self._salt
        self._hashes += chain(parent, ids[known * size : full * size], size)
        return self._hashes
