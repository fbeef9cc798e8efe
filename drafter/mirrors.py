"""The table of mirrors: who is in it, what of the cache they hold, and who has to make room."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from common.model.blocks import BlockManager
from drafter.config import EngineConfig
from drafter.mirror import Mirror
from drafter.reply import Key, Outbox


class Mirrors:
    """All mirrors of one drafter. The engine's thread alone changes it; others may count.

    Args:
        config: Sizes.
        blocks: Of the cache.
        gave_up: Told of a mirror that has to go: its key, its incarnation, and why.
    """

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        gave_up: Callable[[Key, int, str], None],
    ) -> None:
        self._config = config
        self._blocks, self._plenty = blocks, blocks.count * blocks.block_tokens // 2
        self._gave_up = gave_up
        self._table: dict[Key, Mirror] = {}
        self._uses = itertools.count()

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: Key) -> bool:
        return key in self._table

    def items(self) -> list[tuple[Key, Mirror]]:
        """All of them, as they are now."""
        return list(self._table.items())

    def find(self, key: Key, incarnation: int) -> Mirror | None:
        """The mirror of this incarnation; None where there is none, or another."""
        mirror = self._table.get(key)
        return mirror if mirror is not None and mirror.incarnation == incarnation else None

    def add(self, key: Key, mirror: Mirror) -> None:
        """Takes a mirror in, at the cost of the least recently used where there are too many."""
        while len(self._table) >= self._config.max_sessions:
            self.give_up(self._idlest(), "too many sessions")
        self.touch(mirror)
        self._table[key] = mirror

    def touch(self, mirror: Mirror) -> None:
        """Counts a mirror as just used."""
        mirror.used = next(self._uses)

    def reserve(self, key: Key, mirror: Mirror, positions: int) -> bool:
        """Makes room for committed ids, at the cost of idle mirrors; False where it is in vain."""
        return self._grow(key, lambda: mirror.text.lease.reserve(positions))

    def reserve_scratch(self, key: Key, mirror: Mirror) -> bool:
        """Makes room for drafted nodes: for several branches where half of the cache stays free,
        else for one, in the same way."""
        positions = self._config.scratch_tokens
        if self._blocks.available * self._blocks.block_tokens - positions < self._plenty:
            positions = self._config.branch_tokens
        if not self._grow(key, lambda: mirror.scratch.reserve(positions)):
            return False
        mirror.free = mirror.scratch.slots[:positions].tolist()
        return True

    def give_up(self, key: Key, reason: str) -> None:
        """Ends a mirror and tells why; one that is gone is fine."""
        mirror = self.end(key)
        if mirror is not None:
            self._gave_up(key, mirror.incarnation, reason)

    def end(self, key: Key) -> Mirror | None:
        """Takes a mirror out, and its blocks back."""
        mirror = self._table.pop(key, None)
        if mirror is not None:
            mirror.text.lease.release()
            mirror.scratch.release()
        return mirror

    def forget(self, outbox: Outbox) -> None:
        """Ends all mirrors of a verifier that went away."""
        for key in list(self._table):
            if key[0] == outbox:
                self.end(key)

    def _grow(self, key: Key, attempt: Callable[[], bool]) -> bool:
        while not attempt():
            victim = self._idlest()
            self.give_up(victim, "out of cache blocks")
            if victim == key:
                return False
        return True

    def _idlest(self) -> Key:
        return min(self._table, key=lambda key: self._table[key].used)
