"""The thread that carries n-grams to and from Redis, so that no other has to wait for it.

Others leave notes in queues of bounded length and find finished tables in another. Text gathers
for a moment and is then packed at once, so that other threads are held up for little: this one
shares the interpreter with the engine's. What cannot be written is dropped and counted: n-grams
are worth a little speed, not an effort.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from common.store.client import reason
from common.store.pool_cache import Ngram, Table
from common.store.pool_config import PoolConfig
from common.store.pool_packing import PackedSet, count, pack
from common.store.pool_scripts import READ, UPSERTS, WRITE, Layout

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

TIMEOUT_S = 0.5
_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 5.0
_LOOK_S = 5.0
"""Time without a call after which the store is looked at."""
_CLOSE_S = 1.0
"""How long writing goes on after `close`."""
_MOST_READS = 4096
_READS = 4
"""Sets read in one call: building their tables holds other threads up."""

_MOST_TOKEN = (1 << 31) - 1
"""Greatest token id there is; a store's records have room for more."""

_FOLLOW = 4
"""The best n-grams of a set whose other tokens are read ahead."""


@dataclass
class PoolCounts:
    """What happened between one process and the store."""

    written: int = 0
    """N-grams written, repetitions included."""
    dropped: int = 0
    """N-grams given up: the store was away, or they came too fast."""
    read: int = 0
    """Sets read."""
    evicted: int = 0
    """Sets that this process's writes pushed out of the store's budget."""
    away: bool = False
    """Whether the last call failed, or the last that wrote."""


@dataclass
class _Call:
    """One call of `WRITE`."""

    keys: list[str] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    ngrams: int = 0

    def add(self, prefix: str, packed: PackedSet) -> None:
        """Takes a set; `prefix` begins its name."""
        self.keys.append(f"{prefix}{packed.first}")
        self.records.append(packed.records)
        self.ngrams += packed.ngrams


class Worker:
    """Owns the connection and its thread.

    Args:
        client: Of the store.
        layout: Names and packing.
        sizes: Limits.
    """

    def __init__(self, client: Redis, layout: Layout, sizes: PoolConfig) -> None:
        self._client, self._layout, self._sizes = client, layout, sizes
        self._write_script = client.register_script(WRITE)
        self._read_script = client.register_script(READ)
        self.arrived: deque[tuple[str, int, Table]] = deque(maxlen=_MOST_READS)
        """Tables read: tenant, first token, table; for whoever owns the cache."""
        self._writes: deque[tuple[str, Sequence[int]]] = deque()
        self._calls: deque[_Call] = deque()
        self._reads: deque[tuple[str, int]] = deque(maxlen=_MOST_READS)
        self._ahead: deque[tuple[str, int]] = deque(maxlen=_MOST_READS)
        self._followed: set[tuple[str, int]] = set()
        # Each number has one writer, so that none needs a lock.
        self._offered = self._refused = self._taken = 0
        self._counts = PoolCounts()
        self._unwritten: _Call | None = None  # the last that was made, unless the store took it
        self._pause_s = _FIRST_PAUSE_S
        self._give_up_at = math.inf
        self._work, self._urgent = threading.Event(), threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ngram-pools", daemon=True)
        self._thread.start()

    # From the owner of the cache.

    def write(self, tenant: str, ids: Sequence[int]) -> None:
        """Has the n-grams of a stretch of text counted in the store, some time."""
        ngrams = count(len(ids), self._layout.ngram_tokens)
        if not ngrams:
            return
        if self._offered - self._taken + ngrams > self._sizes.most_waiting:
            self._refused += ngrams
            return
        self._offered += ngrams
        self._writes.append((tenant, ids))
        if not self._work.is_set():
            self._work.set()

    def read(self, tenant: str, first: int) -> None:
        """Has a first token's n-grams read soon."""
        self._reads.append((tenant, first))
        if not self._urgent.is_set():
            self._urgent.set()
            self._work.set()

    @property
    def counts(self) -> PoolCounts:
        """What happened so far; from any thread."""
        return replace(self._counts, dropped=self._counts.dropped + self._refused)

    def close(self) -> None:
        """Writes what waits, for a short while and unless the store is away; ends the thread."""
        self._give_up_at = time.monotonic() + _CLOSE_S
        self._closing.set()
        self._urgent.set()
        self._work.set()
        self._thread.join(_CLOSE_S + 2 * TIMEOUT_S)  # the call it is in, and a new connection
        if self._thread.is_alive():
            log.warning("n-gram store does not let go")

    # The thread.

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._work.wait(_LOOK_S):
                self._work.clear()
                self._gather()
                self._carry(writing=True)
            else:
                self._carry(writing=False, looking=True)
        self._carry(writing=True)
        self._client.close()

    def _gather(self) -> None:
        """Lets writes gather, and reads what is asked for meanwhile."""
        due = time.monotonic() + self._sizes.flush_s
        while not self._closing.is_set() and (left := due - time.monotonic()) > 0:
            if self._urgent.wait(left):
                self._urgent.clear()  # before its reads are taken, so that none is overlooked
                self._carry(writing=False)
        self._urgent.clear()

    def _carry(self, *, writing: bool, looking: bool = False) -> None:
        """Does what waits; after a failure the store is left alone a while."""
        try:
            if looking:
                self._look()
            if writing:
                self._pack()
            while self._reads or self._ahead or (writing and self._calls):
                if time.monotonic() >= self._give_up_at:
                    self._counts.dropped += sum(call.ngrams for call in self._calls)
                    self._calls.clear()
                    return
                self._read_some()
                if writing and self._calls:
                    self._write(self._calls.popleft())
                self._answered()
        except Exception as error:
            self._failed(error)
            self._reads.clear()
            self._ahead.clear()
            self._closing.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
            if self._calls:
                self._work.set()

    def _look(self) -> None:
        """Sees whether the store answers; where it did not take the last write, whether it does.

        What was counted as dropped stays so, and counts twice in the store if it was only late.
        """
        if self._unwritten is None:
            self._client.ping()
        else:
            self._send(self._unwritten)
        self._answered()

    def _pack(self) -> None:
        """Turns the text that has gathered into calls."""
        gathered: dict[str, list[Sequence[int]]] = defaultdict(list)
        for _ in range(len(self._writes)):  # what comes meanwhile gathers for the next time
            tenant, ids = self._writes.popleft()
            gathered[tenant].append(ids)
        self._calls.extend(self._calls_of(gathered))

    def _calls_of(self, gathered: dict[str, list[Sequence[int]]]) -> Iterator[_Call]:
        tokens, call, left = self._layout.ngram_tokens, _Call(), UPSERTS
        for tenant, stretches in gathered.items():
            prefix = self._layout.prefix(tenant)
            for packed in pack(stretches, tokens, UPSERTS):
                records = len(packed.records) // (1 + self._layout.member_bytes)
                if records > left:
                    yield call
                    call, left = _Call(), UPSERTS
                call.add(prefix, packed)
                left -= records
        if call.keys:
            yield call

    def _write(self, call: _Call) -> None:
        self._taken += call.ngrams
        try:
            self._send(call)
        except Exception:
            self._counts.dropped += call.ngrams
            raise
        self._counts.written += call.ngrams

    def _send(self, call: _Call) -> None:
        layout, sizes = self._layout, self._sizes
        limits: list[Any] = [
            sizes.half_life_s,
            int(1000 * sizes.ttl_s),
            sizes.members,
            sizes.max_bytes,
            layout.member_bytes,
        ]
        self._unwritten = call
        evicted: Any = self._write_script(
            keys=[layout.index, layout.sizes, *call.keys], args=[*limits, *call.records]
        )
        self._unwritten = None
        self._counts.evicted += int(evicted)

    def _read_some(self) -> None:
        """Reads one call's worth: what was asked for, else what may be asked for next."""
        asked = bool(self._reads)
        queue = self._reads if asked else self._ahead
        wanted: dict[tuple[str, int], None] = {}
        while queue and len(wanted) < _READS:
            wanted[queue.popleft()] = None
        if not wanted:
            return
        keys = [self._layout.key(tenant, first) for tenant, first in wanted]
        arguments = [self._sizes.half_life_s, self._sizes.members]
        found: Any = self._read_script(keys=keys, args=arguments)
        for (tenant, first), members, weights in zip(wanted, found[::2], found[1::2], strict=True):
            ngrams = list(self._layout.ngrams(first, members, weights))
            self.arrived.append((tenant, first, _table(ngrams)))
            if asked:
                self._follow(tenant, ngrams[:_FOLLOW])
        self._counts.read += len(wanted)

    def _follow(self, tenant: str, ngrams: Sequence[tuple[Ngram, float]]) -> None:
        """Notes the tokens of likely n-grams, once each, to be read ahead."""
        if len(self._followed) > _MOST_READS:
            self._followed.clear()
        for ngram, _ in ngrams:
            fresh = {(tenant, token) for token in ngram[1:]} - self._followed
            self._followed |= fresh
            self._ahead.extend(fresh)

    def _answered(self) -> None:
        # One that is full, or a replica, answers reads all the same; they wait as long as its looks
        # do.
        if self._unwritten is not None:
            return
        if self._counts.away:
            log.info("n-gram store is back")
        self._counts.away = False
        self._pause_s = _FIRST_PAUSE_S

    def _failed(self, error: Exception) -> None:
        if not self._counts.away:
            log.warning("n-gram store is away", extra={"reason": reason(error)})
        self._counts.away = True


def _table(ngrams: Iterable[tuple[Ngram, float]]) -> Table:
    table = Table()
    for ngram, weight in ngrams:
        if max(ngram) <= _MOST_TOKEN:
            table.add_ngram(ngram, weight)
    return table
