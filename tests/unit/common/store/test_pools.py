"""Shared n-gram pools on real servers: shared within a tenant, bounded, and never in the way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import ConfigError
from common.store import pool_worker
from common.store import pools as pools_module
from common.store.pool_cache import Cache, Table
from common.store.pool_config import PoolConfig
from common.store.pool_scripts import Layout
from common.store.pools import MemoryPools, RedisPools, TenantPool, open_pools
from tests.store_server import PATIENCE_S, PROGRAMS, Server, until


@pytest.fixture(params=sorted(PROGRAMS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    program = PROGRAMS[request.param]
    if program is None:
        pytest.skip(f"{request.param}-server is not installed")
    started = Server(program, tmp_path)
    started.start()
    yield started
    started.kill()


@pytest.fixture
def opened() -> Iterator[Callable[..., RedisPools]]:
    """Opens pools, and closes them all at the end."""
    pools: list[RedisPools] = []

    def opener(url: str, model: str = "m", **sizes: float) -> RedisPools:
        pools.append(RedisPools(url, model, PoolConfig(flush_s=0.01, **sizes)))  # type: ignore[arg-type]
        return pools[-1]

    yield opener
    for each in pools:
        each.close()


def share(pool: TenantPool, *ngrams: tuple[int, ...]) -> None:
    """Hands n-grams over as texts of their own."""
    for ngram in ngrams:
        pool.add(ngram)


def settle(pools: RedisPools, written: int) -> None:
    until(lambda: pools.counts.written + pools.counts.dropped >= written)


def known(pool: TenantPool, context: tuple[int, ...]) -> Mapping[int, float] | None:
    """What is known by now of what follows a context."""
    table = pool.table(context[0])
    return table.followers(context) if table is not None else None


def read(pool: TenantPool, pools: RedisPools, *context: int) -> dict[int, float]:
    """What the store says, however often it has to be asked."""
    before = pools.counts.read
    known(pool, context)
    until(lambda: pools.counts.read > before)
    return dict(known(pool, context) or {})


def test_what_one_process_writes_another_reads(
    server: Server, opened: Callable[..., RedisPools]
) -> None:
    writer, reader = opened(server.url), opened(server.url)
    share(writer.of("a"), *[(1, 2, 3, 4)] * 5, (1, 2, 9, 9), (1, 7, 7, 7))
    settle(writer, 7)
    assert known(writer.of("a"), (1, 2)) == {3: 5.0, 9: 1.0}, "at once, where it was written"
    assert read(reader.of("a"), reader, 1) == pytest.approx({2: 6.0, 7: 1.0}, rel=0.01)
    assert known(reader.of("a"), (1, 2)) == pytest.approx({3: 5.0, 9: 1.0}, rel=0.01)
    assert known(reader.of("a"), (1, 2, 3)) == pytest.approx({4: 5.0}, rel=0.01)
    until(lambda: reader.counts.read >= 5)  # what is likely to be asked for next, ahead


def test_tenants_and_models_never_mix(server: Server, opened: Callable[..., RedisPools]) -> None:
    pools, other_model = opened(server.url), opened(server.url, "n")
    pools.of("a").add((1, 2, 3, 4))
    settle(pools, 1)
    assert read(pools.of("b"), pools, 1) == {}
    assert read(pools.of(""), pools, 1) == {}
    assert read(other_model.of("a"), other_model, 1) == {}
    with server.client() as client:
        names = b" ".join(client.scan_iter("*"))
    assert names.count(b"{ngrams}") == 3
    assert b"m" not in names.replace(b"ngrams", b"").replace(b"index", b"")


def test_the_rarest_go_where_there_are_too_many(
    server: Server, opened: Callable[..., RedisPools]
) -> None:
    pools, reader = opened(server.url, members=4), opened(server.url)
    for token in range(20):
        share(pools.of("a"), *[(1, token, 0, 0)] * (1 + 3 * (token % 5 == 0)))
    settle(pools, 32)
    found = read(reader.of("a"), reader, 1)
    assert set(found) >= {5, 10, 15}
    assert len(found) == 4


def test_frequency_decays_and_old_sets_expire(
    server: Server, opened: Callable[..., RedisPools]
) -> None:
    pools, reader = opened(server.url, ttl_s=60), opened(server.url)
    share(pools.of("a"), *[(1, 2, 3, 4)] * 8)
    settle(pools, 8)
    with server.client() as client:
        (key,) = client.scan_iter("*:4:1")
        assert 0 < client.pttl(key) <= 60_000
        member, score = client.zrange(key, 0, -1, withscores=True)[0]
        client.zadd(key, {member: score - 2})  # as two half-lives would
    assert read(reader.of("a"), reader, 1) == pytest.approx({2: 2.0}, rel=0.01)
    share(pools.of("a"), *[(1, 2, 3, 4)] * 2)
    settle(pools, 10)
    fresh = opened(server.url)
    assert read(fresh.of("a"), fresh, 1) == pytest.approx({2: 4.0}, rel=0.01)


def test_another_half_life_has_ngrams_of_its_own(
    server: Server, opened: Callable[..., RedisPools]
) -> None:
    """Scores grow with time over half-life: beside old ones of a shorter one, new ones are none."""
    short, long = (opened(server.url, half_life_s=each, members=1) for each in (3600, 7200))
    share(short.of("a"), (1, 2, 3, 4))
    settle(short, 1)
    share(long.of("a"), (1, 5, 6, 7))
    settle(long, 1)
    for half_life_s, then in ((3600, 2), (7200, 5)):
        reader = opened(server.url, half_life_s=half_life_s)
        assert read(reader.of("a"), reader, 1) == pytest.approx({then: 1.0}, rel=0.01)


def test_the_budget_holds_and_the_longest_unwritten_go(
    server: Server, opened: Callable[..., RedisPools]
) -> None:
    budget = 1 << 17
    pools = opened(server.url, max_bytes=budget)
    with server.client() as client:
        client.set("session", "kept")
        for first in range(2000):
            share(pools.of(f"t{first % 3}"), *((first, tail, 1, 2) for tail in range(8)))
            if first % 100 == 99:
                settle(pools, 8 * (first + 1))
                used = sum(
                    client.memory_usage(key) or 0 for key in client.scan_iter("paceline:*:4:*")
                )
                assert used <= budget
        assert client.get("session") == b"kept"
        assert pools.counts.evicted > 1000
        reader = opened(server.url)
        assert read(reader.of(f"t{1999 % 3}"), reader, 1999)
        assert not read(reader.of("t0"), reader, 0)
        total = int(client.hget("paceline:{ngrams}:sizes", "total") or 0)
        assert 0.5 * budget < total <= budget


@pytest.mark.parametrize("lost", ["index", "sizes"])
def test_where_the_index_or_the_sizes_are_lost_both_begin_anew(
    lost: str, server: Server, opened: Callable[..., RedisPools]
) -> None:
    pools = opened(server.url)
    with server.client() as client:
        share(pools.of("a"), (1, 2, 3, 4))
        settle(pools, 1)
        client.delete(f"paceline:{{ngrams}}:{lost}")
        share(pools.of("a"), (2, 2, 3, 4))
        settle(pools, 2)
        (key,) = client.zrange("paceline:{ngrams}:index", 0, -1)
        sizes = client.hgetall("paceline:{ngrams}:sizes")
    assert sizes == {key: sizes[key], b"total": sizes[key]}


def test_an_answer_of_nothing_does_not_replace_what_was_learned(
    server: Server, opened: Callable[..., RedisPools]
) -> None:
    pools = opened(server.url)
    share(pools.of("a"), (1, 2, 3, 4))
    pools.worker.arrived.append(("a", 1, Table()))
    assert set(known(pools.of("a"), (1, 2)) or ()) == {3}


def test_what_is_not_known_is_asked_for_once_within_the_time(
    server: Server, opened: Callable[..., RedisPools], monkeypatch: pytest.MonkeyPatch
) -> None:
    pools, asked = opened(server.url), []
    monkeypatch.setattr(pools.worker, "read", lambda *key: asked.append(key))
    for _ in range(3):
        assert not known(pools.of("a"), (1,))
    assert asked == [("a", 1)]


def test_a_process_learns_so_many_at_once_and_then_at_a_rate(
    server: Server, opened: Callable[..., RedisPools], monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = opened(server.url)
    now = [pools.now]
    monkeypatch.setattr(pools_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert [pools.learnable(150) for _ in range(3)] == [150, 50, 0]
    now[0] += 0.1
    assert pools.learnable(150) == pytest.approx(100, abs=1)
    now[0] += 60
    assert [pools.learnable(500) for _ in range(3)] == [200, 0, 0], "a pause saves up no more"


def test_what_is_known_is_asked_for_again(
    server: Server, opened: Callable[..., RedisPools]
) -> None:
    writer, reader = opened(server.url), opened(server.url, refresh_s=0.01)
    assert read(reader.of("a"), reader, 1) == {}
    writer.of("a").add((1, 2, 3, 4))
    settle(writer, 1)

    def found() -> bool:
        reader.of("a").add([])  # ends a round
        return known(reader.of("a"), (1,)) is not None

    until(found)


def test_a_store_killed_and_restarted_under_load_changes_nothing_but_the_counts(
    server: Server, opened: Callable[..., RedisPools], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pools = opened(server.url, most_waiting=500)
    stop, failed = threading.Event(), []
    rounds = 0

    def load() -> None:
        nonlocal rounds
        pool = pools.of("a")
        try:
            while not stop.is_set():
                pool.add((rounds % 50, 1, 2, 3))
                assert set(known(pool, (rounds % 50, 1)) or ()) == {2}
                rounds += 1
                time.sleep(0.0005)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        until(lambda: pools.counts.written > 50 or failed)
        server.kill()
        until(lambda: pools.counts.away or failed)
        gone = rounds
        until(lambda: pools.counts.dropped > 0 or failed)
        server.start()
        until(lambda: not pools.counts.away or failed)
        back = pools.counts.written
        until(lambda: pools.counts.written > back + 50 or failed)
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert rounds > gone
    told = [record.message for record in caplog.records if record.name == pool_worker.__name__]
    assert told == ["n-gram store is away", "n-gram store is back"]


def test_whether_the_store_is_there_is_known_without_ngrams(
    server: Server, opened: Callable[..., RedisPools], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_worker, "_LOOK_S", 0.01)
    server.kill()
    pools = opened(server.url)
    until(lambda: pools.counts.away)
    server.start()
    until(lambda: not pools.counts.away)


def test_a_store_that_takes_no_writes_is_away_until_it_does(
    server: Server,
    opened: Callable[..., RedisPools],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(pool_worker, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(pool_worker, "_MOST_PAUSE_S", 0.01)
    pools = opened(server.url)

    def answered() -> bool:
        pools.worker.read("a", 1)
        return pools.counts.read > before

    with server.client() as client:
        pools.of("a").add((1, 2, 3, 4))
        settle(pools, 1)
        client.config_set("maxmemory", 1)
        pools.of("a").add((1, 2, 3, 4))
        until(lambda: pools.counts.away)
        before = pools.counts.read + 4
        until(answered)
        assert pools.counts.away
        monkeypatch.setattr(pool_worker, "_LOOK_S", 0.01)
        pools.worker.read("a", 1)  # ends the wait for a look
        client.config_set("maxmemory", 0)
        until(lambda: not pools.counts.away)
    told = [record.message for record in caplog.records if record.name == pool_worker.__name__]
    assert told == ["n-gram store is away", "n-gram store is back"]
    reader = opened(server.url)
    assert read(reader.of("a"), reader, 1) == pytest.approx({2: 2.0}, rel=0.01), "written again"


def test_a_silent_store_holds_nobody_up(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    pools = RedisPools(f"unix://{tmp_path / 's'}", "m", PoolConfig(flush_s=0, most_waiting=100))
    pool = pools.of("a")
    started = time.thread_time()
    for index in range(1000):
        pool.add((index % 10, 1, 2, 3))
        assert known(pool, (index % 10, 1)) is not None
    assert time.thread_time() - started < 1.0
    assert pools.counts.dropped >= 800
    pools.close()
    listener.close()


LAYOUT = Layout("n", "m", ngram_tokens=4, half_life_s=60)


class SlowStore:
    """Answers each call, at its leisure."""

    def register_script(self, text: str) -> Callable[..., int]:
        def call(**_: object) -> int:
            time.sleep(0.05)
            return 0

        return call

    def close(self) -> None:
        pass


def test_closing_does_not_wait_for_a_slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it would take a quarter of a minute."""
    monkeypatch.setattr(pool_worker, "_CLOSE_S", 0.2)
    config = PoolConfig(flush_s=0, most_waiting=1_000_000)
    worker = pool_worker.Worker(SlowStore(), LAYOUT, config)  # type: ignore[arg-type]
    worker.write("a", tuple(range(20_003)))
    worker.close()
    worker._thread.join(PATIENCE_S)  # it ends by itself, where not in time
    assert worker.counts.dropped > 0
    assert worker.counts.written + worker.counts.dropped == 20_000


def test_without_a_store_pools_are_this_process_only() -> None:
    pools = open_pools(None, "m", PoolConfig())
    assert isinstance(pools, MemoryPools)
    share(pools.of("a"), (1, 2, 3, 4), (1, 2, 3, 5))
    assert known(pools.of("a"), (1, 2, 3)) == {4: 1.0, 5: 1.0}
    assert known(pools.of("a"), (1, 9)) is None
    assert known(pools.of("b"), (1,)) is None
    pools.of("a").expect([1])
    assert pools.counts.written == 0
    pools.close()


def test_ids_that_are_none_are_left_out_of_what_a_store_holds() -> None:
    table = pool_worker._table([((1, 1 << 31), 1.0), ((1, 2), 1.0)])
    assert table.followers((1,)) == {2: 1.0}


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    cache = Cache(64 << 10)
    for first in range(5000):
        cache.add("a", (first, 1, 2, 3))
        table = cache.get("a", 0)
        assert table is not None
        assert table.followers((0, 1)) == {2: 1.0}
        assert len(cache) * 256 < 2 * (64 << 10)
    assert cache.get("a", 100) is None


@pytest.mark.parametrize(
    "sizes",
    [
        {"ngram_tokens": 1},
        {"ngram_tokens": 17},
        {"members": 0},
        {"max_bytes": 1},
        {"refresh_s": 0.0},
    ],
)
def test_sizes_that_make_no_sense(sizes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"pools.{next(iter(sizes))}"):
        PoolConfig(**sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url", ["http://h", "redis://:secret#more@h", "redis://h?db=none", "redis://h?colour=red"]
)
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="store_url") as refused:
        open_pools(url, "m", PoolConfig())
    assert "secret" not in str(refused.value)
