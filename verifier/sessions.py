"""The verifier's own fence of sessions: the highest epoch of each, whose turn runs, what is cached.

The store's fence alone would not do: a gateway that was cut off, or whose store lost its records,
may still reach a verifier. The cache itself needs none of this, it is found by content; what ends
with a session is the claim on its blocks, and they are given up where no other session claims them.

Turns that run are never dropped: the engine bounds how many there are. Sessions between turns
and those that were released here stand apart, each with a bound of its own, so that no number
of the latter pushes out what is cached of the former.

All methods run on the event loop.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.errors import Aborted
from common.model.blocks import BlockManager, chain

_MOST_SESSIONS = 20_000
"""Between turns; as many again that were released."""

_CLAIMS_PER_BLOCK = 4
"""Of the cache, that are remembered: what was claimed before that is evicted anyway."""

End = Callable[[Aborted], None]


@dataclass
class _Session:
    epoch: int
    request_id: str | None = None
    """Of its turn; None where that is elsewhere, so that any of its epoch may still come."""
    used_at: float = 0.0
    end: End | None = None
    """Ends the turn that runs; None between turns."""


class _Claims:
    """Which blocks sessions have filled, in their last turns, by digest; several may share one.

    Args:
        most: Claims that are remembered, those of the latest turns.
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._digests: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()
        self._sessions: Counter[bytes] = Counter()

    def put(self, key: str, digests: tuple[bytes, ...]) -> None:
        """Takes a session's claims instead of those it had."""
        self.drop(key)
        self._digests[key] = digests
        self._sessions.update(digests)
        self._count += len(digests)
        while self._count > self._most:
            self.drop(next(iter(self._digests)))

    def drop(self, key: str) -> list[bytes]:
        """Ends a session's claims; returns what nobody claims any more."""
        digests = self._digests.pop(key, ())
        self._sessions.subtract(digests)
        self._count -= len(digests)
        unclaimed = [digest for digest in digests if not self._sessions[digest]]
        for digest in unclaimed:
            del self._sessions[digest]
        return unclaimed


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
        self._claims = _Claims(_CLAIMS_PER_BLOCK * blocks.count)
        self._running: dict[str, _Session] = {}
        # The least recently used first.
        self._idle: OrderedDict[str, _Session] = OrderedDict()
        self._released: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running) + len(self._idle) + len(self._released)

    @property
    def kept(self) -> int:
        """Those that run, and those whose cache is kept for another turn."""
        self._evict()
        return len(self._running) + len(self._idle)

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
        known = self._find(key)
        if known is not None:
            replayed = epoch == known.epoch and known.request_id not in (None, request_id)
            if epoch < known.epoch or replayed:
                self.stale += 1
                raise Aborted
            self._supersede(known)
        self._drop(key)
        self._running[key] = _Session(epoch, request_id, end=end)

    def leave(self, key: str, end: End, ids: Sequence[int], salt: bytes) -> None:
        """Ends a turn.

        Args:
            key: The session.
            end: As given to `enter`: a turn that was taken over has nothing to end any more.
            ids: Its tokens, prompt and output.
            salt: Of its cached prefixes.
        """
        known = self._running.get(key)
        if known is None or known.end is not end:
            return
        self._drop(key)
        known.end = None
        self._claims.put(key, tuple(chain(salt, ids, self._blocks.block_tokens)))
        self._keep(self._idle, key, known)

    def release(self, key: str, epoch: int) -> None:
        """Gives up what is cached of a session, and refuses its earlier turns from now on.

        Args:
            key: The session.
            epoch: Of the turn that has it, elsewhere; it may come back. Where it has already,
                this was long on its way, and nothing is given up.

        Raises:
            Aborted: A later turn was here.
        """
        known = self._find(key)
        if known is not None and epoch < known.epoch:
            self.stale += 1
            raise Aborted
        if key in self._running and epoch == self._running[key].epoch:
            return
        if known is not None:
            self._supersede(known)
        self._forget(key)
        self._drop(key)
        self._keep(self._released, key, _Session(epoch))

    def _find(self, key: str) -> _Session | None:
        return self._running.get(key) or self._idle.get(key) or self._released.get(key)

    def _drop(self, key: str) -> None:
        for place in (self._running, self._idle, self._released):
            place.pop(key, None)

    def _keep(self, place: OrderedDict[str, _Session], key: str, session: _Session) -> None:
        session.used_at = self._clock()
        place[key] = session
        self._evict()

    def _supersede(self, known: _Session) -> None:
        if known.end is not None:
            self.stale += 1
            end, known.end = known.end, None
            end(Aborted())

    def _evict(self) -> None:
        """Drops what is expired or too many, the least recently used first."""
        expired = self._clock() - self._ttl_s
        for place in (self._idle, self._released):
            while place:
                key, known = next(iter(place.items()))
                if known.used_at > expired and len(place) <= _MOST_SESSIONS:
                    break
                del place[key]
                self._forget(key)

    def _forget(self, key: str) -> None:
        """Gives up what is cached of a session, but for what others have in common with it."""
        if unclaimed := self._claims.drop(key):
            self._post(lambda: self._blocks.forget(unclaimed))
