"""Which verifier holds a session's key/value cache, and who may say so: a hint with a fence.

Each turn opens its session anew and gets an epoch that is higher than all before, claims it for
the verifier it goes to, and says at its end what that one holds. A record is written only by
whoever has the highest epoch, and verifiers refuse lower ones, too: of two gateways that race for
a session, one wins and the other learns it. Wrong or missing records cost a prefill, nothing
else. So calls are bounded by a short timeout, and a store that is away is logged once and lived
without: epochs then come from this machine's clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger(__name__)

TIMEOUT_S = 0.05
_NAMESPACE = "paceline"

# Of the in-process store; far above what one gateway serves within an hour.
_MAX_SESSIONS = 100_000

# Microseconds, so that an epoch is higher than all before it even where the store has lost them;
# the store's clock, so that gateways need not agree on one. Redis 7.0 level.
_OPEN = """
local old = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'handle', 'length', 'hash', 'model')
local now = redis.call('TIME')
local epoch = math.max(
  tonumber(old[1] or '0') + 1, tonumber(ARGV[2]) + 1, now[1] * 1000000 + now[2])
local text = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'epoch', text)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {text, old[2], old[3], old[4], old[5], old[6]}
"""
# A lower epoch, or none, is that of a store that was away, or has lost its records, meanwhile.
_SAVE = """
if tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'owner', ARGV[3], 'handle', ARGV[4],
           'length', ARGV[5], 'hash', ARGV[6], 'model', ARGV[7])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """What is known of a session.

    Attributes:
        owner: Address of the verifier that serves it, or did last.
        handle: That verifier's incarnation: with another one its cache is gone.
        length: Tokens whose keys and values it holds, as of the last turn that ended there.
        hash: Of those tokens.
        model: The model's name.
    """

    owner: str
    handle: str
    length: int
    hash: str
    model: str


@dataclass(frozen=True, kw_only=True)
class OpenSession:
    """A session that was opened for one turn.

    Attributes:
        key: Its key.
        epoch: Its fence, higher than all before.
        record: What was known of it, or None.
        fenced: Whether the store said so. It did not where it was away or slow; it may have
            opened the session all the same, with another epoch, so that what it says later of
            this one means nothing.
    """

    key: str
    epoch: int
    record: SessionRecord | None
    fenced: bool = True


class SessionStore(ABC):
    """Remembers sessions. No method raises, none takes longer than `TIMEOUT_S`."""

    @property
    def available(self) -> bool:
        """Whether the store answered when it was last asked."""
        return True

    @abstractmethod
    async def open(self, key: str) -> OpenSession:
        """Begins a turn; whoever opened the session before can no longer save it."""

    @abstractmethod
    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        """Writes where a turn runs, or what it left.

        Returns:
            False where someone else has opened the session since, None where the store is away.
        """

    async def close(self) -> None:
        """Disconnects."""
        return


def open_sessions(url: str | None, ttl_s: float) -> SessionStore:
    """Opens the store at a URL, or one in this process where there is none.

    Args:
        url: redis://host:port/db, rediss:// or unix:///path.
        ttl_s: Seconds a record lives after its last turn.

    Raises:
        ConfigError: The URL is none that is understood.
    """
    return MemorySessions(ttl_s) if url is None else RedisSessions(url, ttl_s)


class Epochs:
    """Epochs of one process: microseconds of its clock, each higher than all before.

    Attributes:
        last: The highest so far.
    """

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        """Returns a higher epoch than any before."""
        self.last = max(self.last + 1, time.time_ns() // 1000)
        return self.last


class MemorySessions(SessionStore):
    """Sessions of this process only, the oldest dropped first."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._epochs = Epochs()
        self._records: OrderedDict[str, tuple[float, int, SessionRecord | None]] = OrderedDict()

    async def open(self, key: str) -> OpenSession:
        """See `SessionStore.open`."""
        expires, _, record = self._records.get(key, (0.0, 0, None))
        if expires <= time.monotonic():
            record = None
        epoch = self._epochs.next()
        self._put(key, epoch, record)
        return OpenSession(key=key, epoch=epoch, record=record)

    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        """See `SessionStore.save`."""
        if self._records.get(key, (0.0, 0, None))[1] > epoch:
            return False
        self._put(key, epoch, record)
        return True

    def _put(self, key: str, epoch: int, record: SessionRecord | None) -> None:
        self._records[key] = (time.monotonic() + self._ttl_s, epoch, record)
        self._records.move_to_end(key)
        while self._records and self._oldest_expired():
            self._records.popitem(last=False)

    def _oldest_expired(self) -> bool:
        expires, _, _ = next(iter(self._records.values()))
        return expires <= time.monotonic() or len(self._records) > _MAX_SESSIONS


class RedisSessions(SessionStore):
    """Sessions in Redis or Valkey: one hash each, `paceline:session:{key}`, with a TTL."""

    def __init__(self, url: str, ttl_s: float) -> None:
        self._ttl_ms = int(ttl_s * 1000)
        self._redis = _connect(url)
        self._open_script = self._redis.register_script(_OPEN)
        self._save_script = self._redis.register_script(_SAVE)
        self._epochs = Epochs()
        self._away = False

    @property
    def available(self) -> bool:
        """See `SessionStore.available`."""
        return not self._away

    async def open(self, key: str) -> OpenSession:
        """See `SessionStore.open`."""
        found = await self._run(self._open_script, key, [self._ttl_ms, self._epochs.last])
        if found is None:
            return OpenSession(key=key, epoch=self._epochs.next(), record=None, fenced=False)
        epoch, *fields = found
        self._epochs.last = max(self._epochs.last, int(epoch))
        return OpenSession(key=key, epoch=int(epoch), record=_record(fields))

    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        """See `SessionStore.save`."""
        fields = [str(value) for value in asdict(record).values()]
        saved = await self._run(self._save_script, key, [epoch, self._ttl_ms, *fields])
        return None if saved is None else bool(saved)

    async def close(self) -> None:
        """See `SessionStore.close`."""
        await self._redis.aclose()

    async def _run(self, script: Any, key: str, arguments: list[Any]) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await script(keys=[f"{_NAMESPACE}:session:{key}"], args=arguments)
        except Exception as error:
            self._failed(error)
            return None
        if self._away:
            log.info("session store is back")
        self._away = False
        return answer

    def _failed(self, error: Exception) -> None:
        # Whatever went wrong, the request goes on without affinity.
        if not self._away:
            reason = str(error) or type(error).__name__
            log.warning("session store is away", extra={"reason": reason})
        self._away = True


def _record(fields: list[str | None]) -> SessionRecord | None:
    owner, handle, length, hash_, model = fields
    if owner is None or handle is None or length is None or hash_ is None or model is None:
        return None  # opened, and never saved
    return SessionRecord(owner=owner, handle=handle, length=int(length), hash=hash_, model=model)


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
