"""Which verifier holds a session's key/value cache, and who may say so: a hint with a fence.

Each turn opens its session anew and gets an epoch that is higher than all before, claims it for
the verifier it goes to, and says at its end where it ended. A record is written only by
whoever has the highest epoch, and verifiers refuse lower ones, too: of two gateways that race for
a session, one wins and the other learns it. Wrong or missing records cost a prefill, nothing
else. So nobody waits longer than a short timeout, and a store that is away is logged once and lived
without: epochs then come from this machine's clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from common.store.client import NAMESPACE, loop_client, reason
from common.store.session_scripts import MOST_AHEAD_US, OPEN, SAVE
from common.tasks import Tasks

log = logging.getLogger(__name__)

TIMEOUT_S = 0.05
"""How long a caller waits for the store."""
_CALL_S = 2.0
"""How long a connection may take, and a call that nobody waits for any longer."""
_LOOK_S, _AWAY_S = 5.0, 1.0
"""Between two looks whether the store answers, and where it did not."""
_TRIES = 3
"""Calls of a look: one alone is late where this machine is busy, too."""
_READY = 8
"""Connections made before they are needed."""
_MOST_CONNECTIONS = 64
"""At most; a call that finds none free waits for one as long as its caller does, and is late."""
_MOST_CALLS = 256
"""Calls under way; no more are made of a store that hangs, until it is known to be away."""

_TAGGED = f"{{{NAMESPACE}}}"
"""Begins all names: a hash tag, so that a part of a cluster that has the probe has all sessions."""
_PROBE = f"{_TAGGED}:probe"
"""Name of a session that is nobody's."""

Call = Callable[[], Awaitable[Any]]
"""Asks the store."""

# Of the in-process store; far above what one gateway serves within an hour.
_MAX_SESSIONS = 100_000


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """What is known of a session.

    Attributes:
        owner: Address of the verifier that serves it, or did last.
        handle: That verifier's incarnation: with another one its cache is gone.
        model: The model's name.
    """

    owner: str
    handle: str
    model: str


@dataclass(frozen=True, kw_only=True)
class OpenSession:
    """A session that was opened for one turn.

    Attributes:
        key: Its key.
        epoch: Its fence, higher than all before.
        record: What was known of it, or None.
        fenced: Whether the store said so, and no call that an earlier turn gave up may follow. It
            did not where it was away or slow, or its epoch far from this machine's clock; it may
            have opened the session all the same, with another epoch, so that what it says later of
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
        """Whether the store answers in time, as of the last few seconds."""
        return True

    @abstractmethod
    async def open(self, key: str) -> OpenSession:
        """Begins a turn; whoever opened the session before can no longer save it."""

    @abstractmethod
    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        """Writes where a turn runs, or ended.

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
    """Sessions in Redis or Valkey: one hash each, `{paceline}:session:{key}`, with a TTL.

    Made where an event loop runs: a task keeps connections to the store until `close`. Setting one
    up takes several round trips, more than a caller waits for where the store is far.
    """

    def __init__(self, url: str, ttl_s: float) -> None:
        self._ttl_ms = int(ttl_s * 1000)
        self._redis = loop_client(
            url, timeout_s=_CALL_S, connections=_MOST_CONNECTIONS, wait_s=TIMEOUT_S
        )
        self._open_script = self._redis.register_script(OPEN)
        self._save_script = self._redis.register_script(SAVE)
        self._epochs = Epochs()
        self._away = self._far = False
        self._calls = Tasks()
        self._late: dict[asyncio.Task[Any], str] = {}  # openings, by name, that nobody waits for
        self._keeper = asyncio.create_task(self._keep())

    @property
    def available(self) -> bool:
        """See `SessionStore.available`."""
        return not self._away

    async def open(self, key: str) -> OpenSession:
        """See `SessionStore.open`."""
        name = _name(key)
        late = name in self._late.values()  # it may reach the store after this one
        found = await self._ask(self._opening(name), name)
        epoch = None if isinstance(found, Exception) else self._sound(found[0])
        if epoch is None:
            return OpenSession(key=key, epoch=self._epochs.next(), record=None, fenced=False)
        self._epochs.last = max(self._epochs.last, epoch)
        return OpenSession(key=key, epoch=epoch, record=_record(found[1:]), fenced=not late)

    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        """See `SessionStore.save`."""
        arguments: list[Any] = [epoch, self._ttl_ms, *asdict(record).values()]
        saved = await self._ask(partial(self._save_script, [_name(key)], arguments))
        return None if isinstance(saved, Exception) else bool(saved)

    async def close(self) -> None:
        """See `SessionStore.close`."""
        self._keeper.cancel()
        await self._calls.finish(cancel=True)
        await asyncio.gather(self._keeper, return_exceptions=True)
        await self._redis.aclose()

    async def _keep(self) -> None:
        """Connects, and looks whether the store does what it is for, again and again."""
        look = self._opening(_PROBE)
        while True:
            await asyncio.gather(*(self._answer(look) for _ in range(_READY)))
            self._looked([await self._wait_for(look) for _ in range(_TRIES)])
            await asyncio.sleep(_AWAY_S if self._away else _LOOK_S)

    def _looked(self, answers: Sequence[Any]) -> None:
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        away = len(errors) == len(answers)
        if away and not self._away:
            log.warning("session store is away", extra={"reason": reason(errors[-1])})
        elif self._away and not away:
            log.info("session store is back")
        self._away = away

    def _sound(self, text: str) -> int | None:
        """The store's epoch; None where it is far ahead of this clock, which is logged once.

        What only follows our last one is sound: this clock was ahead, and has been set back.
        """
        most = max(time.time_ns() // 1000 + MOST_AHEAD_US, self._epochs.last + 1)
        with suppress(ValueError):
            if 0 < (epoch := int(text)) <= most:
                self._far = False
                return epoch
        if not self._far:
            log.warning("session store's epoch is far from this clock", extra={"epoch": text[:32]})
        self._far = True
        return None

    def _opening(self, name: str) -> Call:
        return partial(self._open_script, [name], [self._ttl_ms, self._epochs.last])

    async def _ask(self, call: Call, opens: str = "") -> Any:
        """Returns the store's answer, or the error that there is instead: at once where it is away
        or far behind, else within the timeout.

        Args:
            call: Asks it.
            opens: Name of the session that this opens.
        """
        if self._away or len(self._calls) >= _MOST_CALLS:
            return ConnectionError("the store is away")
        return await self._wait_for(call, opens)

    async def _wait_for(self, call: Call, opens: str = "") -> Any:
        """Returns the same of a store that may be away.

        A call that is late goes on by itself, so that its connection serves the next one.
        """
        task = self._calls.start(self._answer(call))
        try:
            done, _ = await asyncio.wait({task}, timeout=TIMEOUT_S)
        finally:
            if opens and not task.done():
                self._late[task] = opens
                task.add_done_callback(self._late.pop)
        return task.result() if done else TimeoutError(f"no answer within {TIMEOUT_S:g} s")

    async def _answer(self, call: Call) -> Any:
        """Returns what a call does, or the error that it raises."""
        try:
            return await call()
        except Exception as error:
            return error


def _name(key: str) -> str:
    return f"{_TAGGED}:session:{key}"


def _record(fields: list[str | None]) -> SessionRecord | None:
    owner, handle, model = fields
    if owner is None or handle is None or model is None:
        return None  # opened, and never saved
    return SessionRecord(owner=owner, handle=handle, model=model)
