"""Which verifier holds a session's key/value cache: a hint, never a condition.

Wrong or missing records cost a prefill, nothing else. So reads are bounded by a short timeout,
writes happen in the background, and a store that is away is logged once and lived without.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

TIMEOUT_S = 0.05
_NAMESPACE = "paceline"

# Of the in-process store; far above what one gateway serves within an hour.
_MAX_SESSIONS = 100_000


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """What is known of a session.

    Attributes:
        owner: Address of the verifier that served it last.
        model: The model's name.
    """

    owner: str
    model: str


class SessionStore(ABC):
    """Remembers sessions. Neither method raises, neither takes longer than `TIMEOUT_S`."""

    @abstractmethod
    async def get(self, session_id: str) -> SessionRecord | None:
        """Returns a session's record, or None where there is none or the store is away."""

    @abstractmethod
    def put_soon(self, session_id: str, record: SessionRecord) -> None:
        """Starts writing a record and returns at once."""

    async def close(self) -> None:
        """Finishes what was started."""
        return


def open_sessions(url: str | None, ttl_s: float) -> SessionStore:
    """Opens the store at a URL, or one in this process where there is none.

    Args:
        url: redis://host:port/db, rediss:// or unix:///path.
        ttl_s: Seconds a record lives after its last write.

    Raises:
        ConfigError: The URL is none that is understood.
    """
    return MemorySessions(ttl_s) if url is None else RedisSessions(url, ttl_s)


class MemorySessions(SessionStore):
    """Sessions of this process only, the oldest dropped first."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._records: OrderedDict[str, tuple[float, SessionRecord]] = OrderedDict()

    async def get(self, session_id: str) -> SessionRecord | None:
        """See `SessionStore.get`."""
        expires, record = self._records.get(session_id, (0.0, None))
        return record if expires > time.monotonic() else None

    def put_soon(self, session_id: str, record: SessionRecord) -> None:
        """See `SessionStore.put_soon`."""
        self._records[session_id] = (time.monotonic() + self._ttl_s, record)
        self._records.move_to_end(session_id)
        while self._records and self._oldest_expired():
            self._records.popitem(last=False)

    def _oldest_expired(self) -> bool:
        expires, _ = next(iter(self._records.values()))
        return expires <= time.monotonic() or len(self._records) > _MAX_SESSIONS


class RedisSessions(SessionStore):
    """Sessions in Redis or Valkey: one hash each, `paceline:session:{id}`, with a TTL."""

    def __init__(self, url: str, ttl_s: float) -> None:
        self._ttl_ms = int(ttl_s * 1000)
        self._redis = _connect(url)
        self._writes: set[asyncio.Task[None]] = set()
        self._away = False

    async def get(self, session_id: str) -> SessionRecord | None:
        """See `SessionStore.get`."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._redis.hgetall(_key(session_id))
            self._answered()
            if not found:
                return None
            return SessionRecord(owner=str(found["owner"]), model=str(found["model"]))
        except Exception as error:
            self._failed(error)
            return None

    def put_soon(self, session_id: str, record: SessionRecord) -> None:
        """See `SessionStore.put_soon`."""
        task = asyncio.create_task(self._put(session_id, record))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def close(self) -> None:
        """Waits for the writes that are under way, then disconnects."""
        await asyncio.gather(*self._writes)
        await self._redis.aclose()

    async def _put(self, session_id: str, record: SessionRecord) -> None:
        fields: dict[Any, Any] = {"owner": record.owner, "model": record.model}
        try:
            async with asyncio.timeout(TIMEOUT_S), self._redis.pipeline(transaction=True) as batch:
                batch.hset(_key(session_id), mapping=fields)
                batch.pexpire(_key(session_id), self._ttl_ms)
                await batch.execute()
            self._answered()
        except Exception as error:
            self._failed(error)

    def _answered(self) -> None:
        if self._away:
            log.info("session store is back")
        self._away = False

    def _failed(self, error: Exception) -> None:
        # Whatever went wrong, the request goes on without affinity.
        if not self._away:
            reason = str(error) or type(error).__name__
            log.warning("session store is away", extra={"reason": reason})
        self._away = True


def _key(session_id: str) -> str:
    return f"{_NAMESPACE}:session:{session_id}"


def _connect(url: str) -> Redis:
    from redis.asyncio import Redis  # lazily: only deployments with a store need the package

    from common.errors import ConfigError

    try:
        return Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
    except ValueError as error:
        raise ConfigError(f"store_url: {error}") from error
