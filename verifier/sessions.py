"""The verifier's own fence of sessions: the highest epoch of each, whose turn runs, what is cached.

The store's fence alone would not do: a gateway that was cut off, or whose store lost its records,
may still reach a verifier. The cache itself needs none of this, it is found by content; what ends
with a session is the claim on its blocks.

All methods run on the event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.errors import Aborted
from common.model.blocks import BlockManager, chain_hash

_MOST_SESSIONS = 20_000

End = Callable[[Aborted], None]


@dataclass
class _Session:
    epoch: int
    request_id: str
    used_at: float
    end: End | None = None
    """Ends the turn that runs; None between turns."""
    digests: tuple[bytes, ...] = ()
    """Of its full blocks, after its last turn."""


class Sessions:
    """The sessions of one verifier.

    Args:
        blocks: Who holds which block.
        post: Runs something on the thread that owns the blocks.
        ttl_s: Seconds a session is kept after its last turn.
        clock: Seconds that only grow.

    Attributes:
        stale: Turns that were refused or ended because theirs was not the highest epoch.
    """

    def __init__(
        self,
        blocks: BlockManager,
        post: Callable[[Callable[[], None]], None],
        ttl_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stale = 0
        self._blocks, self._post, self._ttl_s, self._clock = blocks, post, ttl_s, clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def enter(self, key: str, epoch: int, request_id: str, end: End) -> None:
        """Begins a turn, and ends the one before where that still runs.

        A request may come again with its own epoch: its gateway lost sight of it and asks anew.

        Args:
            key: The session.
            epoch: The turn's fence.
            request_id: Whose turn.
            end: Called where a later turn takes over.

        Raises:
            Aborted: A later turn, or another one with the same epoch, was here before.
        """
        self._evict()
        known = self._sessions.get(key)
        if known is not None:
            replayed = epoch == known.epoch and request_id != known.request_id
            if epoch < known.epoch or replayed:
                self.stale += 1
                raise _taken_over()
            self._supersede(known)
        digests = known.digests if known is not None else ()
        self._sessions[key] = _Session(epoch, request_id, self._clock(), end, digests)
        self._sessions.move_to_end(key)

    def leave(self, key: str, end: End, ids: Sequence[int], salt: bytes) -> None:
        """Ends a turn.

        Args:
            key: The session.
            end: As given to `enter`: a turn that was taken over has nothing to end any more.
            ids: Its tokens, prompt and output.
            salt: Of its cached prefixes.
        """
        known = self._sessions.get(key)
        if known is None or known.end is not end:
            return
        known.end, known.used_at = None, self._clock()
        self._sessions.move_to_end(key)
        known.digests = _digests(ids, salt, self._blocks.block_tokens)

    def release(self, key: str, epoch: int) -> None:
        """Gives up what is cached of a session, and refuses its turns up to now from now on.

        Raises:
            Aborted: A later turn was here.
        """
        known = self._sessions.get(key)
        if known is not None and epoch < known.epoch:
            self.stale += 1
            raise _taken_over()
        if known is not None:
            self._supersede(known)
            self._forget(known)
        self._sessions[key] = _Session(epoch, "", self._clock())
        self._sessions.move_to_end(key)

    def _supersede(self, known: _Session) -> None:
        if known.end is not None:
            self.stale += 1
            end, known.end = known.end, None
            end(_taken_over())

    def _evict(self) -> None:
        """Drops what is expired or too many, the least recently used first."""
        while self._sessions:
            key, known = next(iter(self._sessions.items()))
            expired = known.used_at + self._ttl_s <= self._clock()
            if known.end is not None or not (expired or len(self._sessions) > _MOST_SESSIONS):
                return
            del self._sessions[key]
            self._forget(known)

    def _forget(self, known: _Session) -> None:
        digests = known.digests
        if digests:
            self._post(lambda: self._blocks.forget(digests))


def _digests(ids: Sequence[int], salt: bytes, block_tokens: int) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        found.append(chain_hash(found[-1] if found else salt, ids[start : start + block_tokens]))
    return tuple(found)


def _taken_over() -> Aborted:
    return Aborted("session_id: a later request has taken this session over")
