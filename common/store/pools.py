"""N-grams that sequences and verifiers share, a pool for each model and tenant.

Reading never waits: what this process knows by now is the answer, and what it does not know is
asked for in the background. Writing never waits either. So Redis slow, full or gone changes how
much is guessed right, and nothing else. No tenant is ever answered from another's n-grams.

What is written can be read in the same process at once, up to a rate: beyond it n-grams come back
by way of the store, since each that is learned here takes time from the thread that makes tokens.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from common.ngrams import Contexts
from common.store.client import NAMESPACE, thread_client
from common.store.pool_cache import Cache, Table
from common.store.pool_config import PoolConfig
from common.store.pool_packing import count
from common.store.pool_scripts import Layout
from common.store.pool_worker import TIMEOUT_S, PoolCounts, Worker

_LEARNED_PER_S = 1000
"""N-grams that this process learns by itself in a second, 1 us each, or 3 where not compiled."""
_LEARNED_AT_ONCE = 200


class NgramPools(ABC):
    """The pools of all tenants. Used from one thread, but for `counts`."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config

    @property
    def ngram_tokens(self) -> int:
        """Tokens of an n-gram."""
        return self.config.ngram_tokens

    @abstractmethod
    def of(self, tenant: str) -> TenantPool:
        """The pool of one tenant."""

    @property
    @abstractmethod
    def counts(self) -> PoolCounts:
        """What happened so far."""

    def close(self) -> None:
        """Writes what waits, for a short while, and lets go of the store."""
        return


class TenantPool(ABC):
    """One tenant's n-grams. No method blocks or raises."""

    @abstractmethod
    def table(self, first: int) -> Contexts | None:
        """Frequencies after contexts that begin with a token, as far as they are known by now."""

    @abstractmethod
    def add(self, ids: Sequence[int]) -> None:
        """Takes a stretch of committed text: its n-grams of `ngram_tokens` tokens each."""

    def expect(self, tokens: Iterable[int]) -> None:
        """Contexts that begin with these will soon be asked for."""
        return


def open_pools(url: str | None, model: str, config: PoolConfig) -> NgramPools:
    """Opens the pools at a URL, or some in this process where there is none.

    Args:
        url: redis://host:port/db, rediss:// or unix:///path.
        model: Fingerprint of the model and its tokenizer.
        config: Sizes.

    Raises:
        ConfigError: The URL is none that is understood.
    """
    return MemoryPools(config) if url is None else RedisPools(url, model, config)


class MemoryPools(NgramPools):
    """Pools of this process only."""

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self._cache = Cache(config.cache_bytes)

    def of(self, tenant: str) -> TenantPool:
        """See `NgramPools.of`."""
        return _MemoryPool(self._cache, tenant, self.ngram_tokens)

    @property
    def counts(self) -> PoolCounts:
        """See `NgramPools.counts`."""
        return PoolCounts()


class _MemoryPool(TenantPool):
    def __init__(self, cache: Cache, tenant: str, ngram_tokens: int) -> None:
        self._cache, self._tenant, self._tokens = cache, tenant, ngram_tokens

    def table(self, first: int) -> Contexts | None:
        return self._cache.get(self._tenant, first)

    def add(self, ids: Sequence[int]) -> None:
        for end in range(self._tokens, len(ids) + 1):
            self._cache.add(self._tenant, tuple(ids[end - self._tokens : end]))


class RedisPools(NgramPools):
    """Pools in Redis or Valkey, read through a cache and written behind by a thread of their own.

    Args:
        url: Of the store.
        model: Fingerprint of the model and its tokenizer.
        config: Sizes.
    """

    def __init__(self, url: str, model: str, config: PoolConfig) -> None:
        super().__init__(config)
        self.cache = Cache(config.cache_bytes)
        layout = Layout(NAMESPACE, model, config.ngram_tokens, config.half_life_s)
        self.worker = Worker(thread_client(url, timeout_s=TIMEOUT_S), layout, config)
        self.now = time.monotonic()
        self._learnable = float(_LEARNED_AT_ONCE)

    def of(self, tenant: str) -> TenantPool:
        """See `NgramPools.of`."""
        return _RedisPool(self, tenant)

    @property
    def counts(self) -> PoolCounts:
        """See `NgramPools.counts`."""
        return self.worker.counts

    def close(self) -> None:
        """See `NgramPools.close`."""
        self.worker.close()

    def learnable(self, ngrams: int) -> int:
        """How many of so many new n-grams this process may learn by itself."""
        before, self.now = self.now, time.monotonic()  # once a round is enough to know what is old
        earned = min(self._learnable + (self.now - before) * _LEARNED_PER_S, _LEARNED_AT_ONCE)
        granted = min(ngrams, int(earned))
        self._learnable = earned - granted
        return granted

    def take_arrived(self) -> None:
        """Puts tables that came from the store in place of what was known."""
        arrived = self.worker.arrived
        while arrived:
            tenant, first, table = arrived.popleft()
            if len(table) or self.cache.get(tenant, first) is None:
                table.asked_at = self.now
                self.cache.put(tenant, first, table)


class _RedisPool(TenantPool):
    def __init__(self, pools: RedisPools, tenant: str) -> None:
        self._pools, self._tenant = pools, tenant
        self._refresh_s = pools.config.refresh_s

    def table(self, first: int) -> Contexts | None:
        pools = self._pools
        if pools.worker.arrived:
            pools.take_arrived()
        return self._table(first)

    def add(self, ids: Sequence[int]) -> None:
        pools, tokens = self._pools, self._pools.ngram_tokens
        ngrams = pools.learnable(count(len(ids), tokens))
        for begin in range(ngrams):
            pools.cache.add(self._tenant, tuple(ids[begin : begin + tokens]))
        pools.worker.write(self._tenant, ids)

    def expect(self, tokens: Iterable[int]) -> None:
        for token in set(tokens):
            self._table(token)

    def _table(self, first: int) -> Table:
        """What is known of a first token; asks for it where that is nothing, or old."""
        pools = self._pools
        table = pools.cache.get(self._tenant, first)
        if table is None:
            table = Table()
            pools.cache.put(self._tenant, first, table)
        if pools.now - table.asked_at > self._refresh_s:
            table.asked_at = pools.now
            pools.worker.read(self._tenant, first)
        return table
