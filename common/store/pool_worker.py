"""The thread that carries n-grams to and from Redis, so that no other has to wait for it.

Others leave notes in queues of bounded length and find finished tables in another. What cannot
be written is dropped and counted: n-grams are worth a little speed, not an effort.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from common.store.pool_cache import Ngram, Table
from common.store.pool_scripts import READ, UPSERTS, WRITE, Layout

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

TIMEOUT_S = 0.5
_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 5.0
_MOST_READS = 4096
_READS = 8
"""Sets read in one call: building their tables holds other threads up."""

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
    failures: int = 0
    """Calls that failed."""
    away: bool = False
    """Whether the last call failed."""


class Sizes(Protocol):
    """What the worker needs of `PoolConfig`."""

    @property
    def members(self) -> int:
        """N-grams kept for one first token."""

    @property
    def ttl_s(self) -> float:
        """Life of a set, in seconds."""

    @property
    def half_life_s(self) -> float:
        """Of an occurrence's weight, in seconds."""

    @property
    def max_bytes(self) -> int:
        """Of all pools in the store."""

    @property
    def flush_s(self) -> float:
        """Time for which writes gather, in seconds."""

    @property
    def most_waiting(self) -> int:
        """N-grams that may wait."""


class Worker:
    """Owns the connection and its thread.

    Args:
        client: Of the store.
        layout: Names and packing.
        sizes: Limits.
    """

    def __init__(self, client: Redis, layout: Layout, sizes: Sizes) -> None:
        self._client, self._layout, self._sizes = client, layout, sizes
        self._write_script = client.register_script(WRITE)
        self._read_script = client.register_script(READ)
        self.arrived: deque[tuple[str, int, Table]] = deque(maxlen=_MOST_READS)
        """Tables read: tenant, first token, table; for whoever owns the cache."""
        self._writes: deque[tuple[str, Sequence[Ngram]]] = deque()
        self._reads: deque[tuple[str, int]] = deque(maxlen=_MOST_READS)
        self._ahead: deque[tuple[str, int]] = deque(maxlen=_MOST_READS)
        self._followed: set[tuple[str, int]] = set()
        # Each number has one writer, so that none needs a lock.
        self._offered = self._refused = self._taken = 0
        self._counts = PoolCounts()
        self._pause_s = _FIRST_PAUSE_S
        self._work, self._urgent = threading.Event(), threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ngram-pools", daemon=True)
        self._thread.start()

    # From the owner of the cache.

    def write(self, tenant: str, ngrams: Sequence[Ngram]) -> None:
        """Has n-grams counted in the store, some time."""
        if not ngrams:
            return
        if self._offered - self._taken + len(ngrams) > self._sizes.most_waiting:
            self._refused += len(ngrams)
            return
        self._offered += len(ngrams)
        self._writes.append((tenant, ngrams))
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
        """Writes what waits, unless the store is away, and ends the thread."""
        self._closing.set()
        self._urgent.set()
        self._work.set()
        self._thread.join()

    # The thread.

    def _run(self) -> None:
        while not self._closing.is_set():
            self._work.wait()
            self._work.clear()
            self._urgent.wait(self._sizes.flush_s)
            self._urgent.clear()
            self._carry()
        self._carry()
        self._client.close()

    def _carry(self) -> None:
        """Does what waits; after a failure it all is given up, and the store left alone a while."""
        try:
            waiting = self._offered  # what comes meanwhile gathers for the next time
            while self._reads or self._ahead or self._taken < waiting:
                self._read_some()
                self._write_some()
                self._answered()
        except Exception as error:
            self._failed(error)
            self._reads.clear()
            self._ahead.clear()
            self._closing.wait(self._pause_s)
            self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)

    def _write_some(self) -> None:
        """Writes one call's worth."""
        gathered: dict[tuple[str, int], Counter[Ngram]] = defaultdict(Counter)
        count = 0
        while self._writes and count < UPSERTS:
            tenant, ngrams = self._writes.popleft()
            if len(ngrams) > UPSERTS - count:
                self._writes.appendleft((tenant, ngrams[UPSERTS - count :]))
                ngrams = ngrams[: UPSERTS - count]
            for ngram in ngrams:
                gathered[tenant, ngram[0]][ngram] += 1
            count += len(ngrams)
        self._taken += count
        if count:
            try:
                self._counts.evicted += int(self._upsert(gathered))
            except Exception:
                self._counts.dropped += count
                raise
            self._counts.written += count

    def _upsert(self, gathered: dict[tuple[str, int], Counter[Ngram]]) -> Any:
        layout, sizes = self._layout, self._sizes
        keys = [layout.index, layout.sizes]
        arguments: list[Any] = [
            sizes.half_life_s,
            int(1000 * sizes.ttl_s),
            sizes.members,
            sizes.max_bytes,
            layout.member_bytes,
        ]
        for (tenant, first), hits in gathered.items():
            keys.append(layout.key(tenant, first))
            arguments.append(b"".join(layout.record(ngram, n) for ngram, n in hits.items()))
        return self._write_script(keys=keys, args=arguments)

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
        if self._counts.away:
            log.info("n-gram store is back")
        self._counts.away = False
        self._pause_s = _FIRST_PAUSE_S

    def _failed(self, error: Exception) -> None:
        if not self._counts.away:
            reason = str(error) or type(error).__name__
            log.warning("n-gram store is away", extra={"reason": reason})
        self._counts.failures += 1
        self._counts.away = True


def _table(ngrams: Iterable[tuple[Ngram, float]]) -> Table:
    table = Table()
    for ngram, weight in ngrams:
        table.add(ngram, weight)
    return table


def connect(url: str) -> Redis:
    """A client for a store; connects when it is first used.

    Raises:
        ConfigError: The URL is none that is understood.
    """
    from redis import Redis  # lazily: only deployments with a store need the package
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from common.errors import ConfigError

    try:
        return Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(f"store_url: {error}") from error
