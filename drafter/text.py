"""What a mirror holds of a session's text: its end, as far as the draft model looks back.

What comes next hangs on what stands shortly before, and a model small enough to draft was seldom
trained on long texts: behind more than that it is wrong more often. So a text that is longer than
a limit goes on as its own end, as if it began there. That costs a pass over half of the limit, once
in as many tokens; and neither the cache that a mirror takes nor what a draft token costs grows with
the text, which may be longer than the draft model allows.

Ends begin at multiples of half the limit: a text that comes back, or goes on with another turn,
finds in the cache what was computed of it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from common import fence
from common.model.blocks import BlockManager
from common.model.kv_cache import KvLease
from common.model.seen import mark, seen


class Extent(NamedTuple):
    """How much of a text a mirror holds."""

    most: int
    """Ids, at most; two at least."""
    limit: int
    """Positions the model has, drafted tokens included."""

    @classmethod
    def of(cls, context_tokens: int, branch_tokens: int, max_len: int, cache_tokens: int) -> Extent:
        """That of a model.

        Args:
            context_tokens: How far back it is to look; 0 for as far as it can.
            branch_tokens: Positions that one branch takes.
            max_len: Positions the model has.
            cache_tokens: Those of its cache, of which one text takes half at most.
        """
        room = min(max(max_len - branch_tokens, max_len // 2), cache_tokens // 2)
        return cls(max(min(context_tokens or room, room), 2), max_len)

    def dropped(self, length: int) -> int:
        """Ids of a text of so many that are not held."""
        step = self.most // 2
        return 0 if length <= self.most else (length // step - 1) * step


class Text:
    """The committed ids of one mirror, and their keys and values.

    Positions count from the first id that is held.

    Args:
        ids: All that is committed.
        extent: How much to hold.
        blocks: Of the cache.
        salt: Only texts with the same share cached prefixes.

    Attributes:
        ids: Those that are held.
        dropped: How many were committed before them.
        lease: Slots of those that are held.
        computed: How many of these have keys and values.
    """

    def __init__(self, ids: Seq[int], extent: Extent, blocks: BlockManager, salt: bytes) -> None:
        self._extent, self._blocks, self._salt = extent, blocks, salt
        self.path_hash = fence.extend(fence.EMPTY, ids)
        """Of all that is committed."""
        self.seen: Tensor | None = None
        """Which ids occur in all that is committed, `[V]`; kept where it is asked for."""
        self._begin(ids, 0)

    @property
    def length(self) -> int:
        """Ids committed, whether they are held or not."""
        return self.dropped + len(self.ids)

    @property
    def pending(self) -> int:
        """Ids held without keys and values."""
        return len(self.ids) - self.computed

    @property
    def limit(self) -> int:
        """Positions the model has."""
        return self._extent.limit

    @property
    def room(self) -> int:
        """Positions it has left behind them."""
        return self.limit - len(self.ids)

    def keep_seen(self, ids: Seq[int], vocab_size: int, device: torch.device) -> None:
        """Keeps `seen` from now on.

        Args:
            ids: All that is committed.
            vocab_size: V.
            device: Where to.
        """
        self.seen = seen(ids, vocab_size, device)

    def takes(self, count: int) -> bool:
        """Whether so many more ids go on behind those that are held."""
        return len(self.ids) + count <= self._extent.most

    def extend(self, ids: Seq[int]) -> None:
        """Adds committed ids; where it does not take so many, nothing held is computed any more."""
        self.path_hash = fence.extend(self.path_hash, ids)
        if self.seen is not None:
            mark(self.seen, ids)
        if self.takes(len(ids)):
            self.ids.extend(ids)
            return
        self.lease.release()
        self._begin([*self.ids, *ids], self.dropped)

    def _begin(self, ids: Seq[int], before: int) -> None:
        """Holds the end of ids that follow so many; nothing but a cached prefix is computed."""
        self.dropped = self._extent.dropped(before + len(ids))
        self.ids = list(ids[self.dropped - before :])
        self.lease = KvLease(self._blocks, self._salt)
        self.computed = self.lease.reuse_prefix(self.ids)
