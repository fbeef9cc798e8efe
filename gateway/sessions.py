"""A conversation's turns: each finds the verifier that holds its cache, and fences off the others.

A turn claims its session for a verifier before it runs there. So a later one goes to the same
verifier, which ends the earlier one, or, where it goes elsewhere, has the session released
there, which ends it as well; and one whose claim comes after a later turn began learns it.

Sessions and cached prefixes belong to a tenant: neither the names that clients choose nor cache
hits tell one tenant anything of another.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

import grpc.aio
from paceline.v1 import verifier_pb2

from common.errors import Aborted, Unavailable
from common.store.sessions import SessionRecord, SessionStore
from common.tasks import Tasks
from gateway.auth.caller import Caller
from gateway.fleet import Fleet
from gateway.placement import Placement

log = logging.getLogger(__name__)

_RELEASE_TIMEOUT_S = 2.0


@dataclass(kw_only=True)
class Turn:
    """One request's part of a session; without one, only the tenant's salt.

    Attributes:
        cache_salt: Separates the cached prefixes of tenants.
        key: Of the session; empty where there is none.
        epoch: Fence of this turn.
        owner: Address of the verifier that held the cache when the turn began, where it still did.
        model: The model's name.
        record: What is known of the session now, by the latest claim.
        fenced: Whether the store knows the epoch; see `OpenSession`.
    """

    cache_salt: bytes
    key: str = ""
    epoch: int = 0
    owner: str | None = None
    model: str = ""
    record: SessionRecord | None = None
    fenced: bool = True


class Sessions:
    """The sessions of all tenants.

    Args:
        fleet: The workers.
        store: Shared with the other gateways, where it is.
    """

    def __init__(self, fleet: Fleet, store: SessionStore) -> None:
        self._fleet, self._store = fleet, store
        self._tasks = Tasks()

    async def begin(self, session_id: str, caller: Caller, model: str) -> Turn:
        """Begins a turn. Those that run in the same session elsewhere end with ABORTED.

        Args:
            session_id: What the client named it; empty for none.
            caller: Whose it is.
            model: The model's name.
        """
        salt = _digest(caller.tenant) if caller.tenant else b""
        if not session_id:
            return Turn(cache_salt=salt)
        opened = await self._store.open(_digest(caller.tenant, session_id).hex())
        return Turn(
            cache_salt=salt,
            key=opened.key,
            epoch=opened.epoch,
            owner=self._owner(opened.record, model),
            model=model,
            record=opened.record,
            fenced=opened.fenced,
        )

    async def claim(self, turn: Turn, placement: Placement) -> None:
        """Says where a turn is going to run, before it does; another verifier is let go.

        Args:
            turn: The turn.
            placement: Where it goes.

        Raises:
            Aborted: A later turn has begun meanwhile.
        """
        if not turn.key:
            return
        before, turn.record = turn.record, self._record(turn, placement)
        saved = await self._store.save(turn.key, turn.epoch, turn.record)
        if saved is False and turn.fenced:
            raise Aborted
        if before is not None and before.owner != placement.verifier:
            self._tasks.start(self._release(turn, before.owner))

    def end(self, turn: Turn, placement: Placement) -> None:
        """Ends a turn, and returns at once.

        Args:
            turn: The turn.
            placement: Where it ended.
        """
        if turn.key:
            self._tasks.start(self._save(turn, self._record(turn, placement)))

    async def close(self) -> None:
        """Finishes what was started."""
        await self._tasks.finish()

    def _record(self, turn: Turn, placement: Placement) -> SessionRecord:
        handle = self._fleet.process(placement.verifier)
        return SessionRecord(owner=placement.verifier, handle=handle, model=turn.model)

    def _owner(self, record: SessionRecord | None, model: str) -> str | None:
        """Who holds the cache: not a process that took the place of the one that did."""
        if record is None or record.model != model:
            return None
        return record.owner if record.handle == self._fleet.process(record.owner) else None

    async def _save(self, turn: Turn, record: SessionRecord) -> None:
        if await self._store.save(turn.key, turn.epoch, record) is False:
            log.info("session was taken over", extra={"session": turn.key, "epoch": turn.epoch})

    async def _release(self, turn: Turn, owner: str) -> None:
        """Frees what a former owner holds, and ends an earlier turn there.

        Where that fails, the cache is evicted in time, and the turn's end is not remembered.
        """
        request = verifier_pb2.ReleaseSessionRequest(session=turn.key, epoch=turn.epoch)
        try:
            stub = self._fleet.verifier(owner, leaving=True).stub
            await stub.ReleaseSession(request, timeout=_RELEASE_TIMEOUT_S)
        except (grpc.aio.AioRpcError, Unavailable) as error:
            log.info("session not released", extra={"owner": owner, "reason": str(error)})


def _digest(*parts: str) -> bytes:
    """Hash of parts, none of which can pass for the end of another."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        state.update(len(data).to_bytes(8, "little") + data)
    return state.digest()
