"""A gateway process whose verifiers come and go while it runs, as an API server says."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline.v1 import inference_pb2, inference_pb2_grpc, types_pb2, worker_pb2

from common.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from common.rpc.channel import open_channel
from gateway import remembered
from gateway.fleet import Fleet
from gateway.snapshot import State
from gateway.tokenizers import Tokenizers
from tests.fakes import kubeapi
from tests.rpc.test_fleet_service import Retiring
from tests.rpc.test_gateway_process import running
from tests.scripted_workers import ScriptedWorker, serving
from tests.tiny_tokenizers import byte_level
from tests.unit.gateway.discovery.reports import endpoint_slice
from tests.waiting import until as happened

REQUEST = inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[1]))


def slice_of(worker: ScriptedWorker) -> dict:
    host, _, port = worker.address.rpartition(":")
    return endpoint_slice("v-1", host, ports=[{"name": "grpc", "port": int(port)}])


def verifier(token: int) -> ScriptedWorker:
    worker = ScriptedWorker()
    worker.messages = [([token], [types_pb2.TOKEN_SOURCE_RECOVERED])]
    return worker


async def ids(stub: inference_pb2_grpc.InferenceStub) -> list[int]:
    messages = [message async for message in stub.Generate(REQUEST)]
    return [id_ for message in messages for id_ in message.chunk.token_ids]


async def test_verifiers_come_and_go_and_no_request_is_lost(tmp_path: Path) -> None:
    file, first, second = tmp_path / "kubeconfig", verifier(5), verifier(6)
    first.hold = asyncio.Event()
    target = ("--verifier", "kubernetes:verifier:grpc", "--kubeconfig", str(file), "--insecure")
    async with kubeapi.serving() as cluster, serving(first, second):
        file.write_text(kubeapi.kubeconfig(cluster.url))
        async with (
            running(*target, "--failover.wait-s", "0") as (_, port),
            open_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub = inference_pb2_grpc.InferenceStub(channel)
            states = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            await cluster.until("watch", 1)
            with pytest.raises(grpc.aio.AioRpcError, match="no verifier is reachable: none found"):
                await ids(stub)
            cluster.apply(slice_of(first))
            await until(states, health_pb2.HealthCheckResponse.SERVING)
            held = stub.Generate(REQUEST)
            assert list((await held.read()).chunk.token_ids) == [5]
            cluster.apply(slice_of(second))
            async with asyncio.timeout(20):
                while await ids_now(stub) != [6]:  # noqa: ASYNC110 - the gateway's own state
                    await asyncio.sleep(0.01)
            first.hold.set()
            assert (await held.read()).HasField("complete")
            cluster.delete("v-1")
            await until(states, health_pb2.HealthCheckResponse.NOT_SERVING)
            states.cancel()


async def ids_now(stub: inference_pb2_grpc.InferenceStub) -> list[int]:
    with contextlib.suppress(grpc.aio.AioRpcError):  # the new one is listed, but not reached yet
        return await ids(stub)
    return []


async def until(states, wanted) -> None:
    async with asyncio.timeout(20):
        while (await states.read()).status != wanted:
            pass


async def test_an_address_that_flaps_is_followed_in_the_end() -> None:
    worker, seen = verifier(5), []

    async with serving(worker), Fleet({}, interval_ms=50, on_change=seen.append) as fleet:
        for _ in range(20):
            fleet.update("verifier", {worker.address})
            await asyncio.sleep(0)
            fleet.update("verifier", ())
            await asyncio.sleep(0.001)
        with pytest.raises(Unavailable, match="has left the fleet"):
            fleet.verifier(worker.address)
        fleet.update("verifier", {worker.address})
        handle = fleet.verifier(worker.address)
        async with asyncio.timeout(20):
            while not handle.present:  # noqa: ASYNC110 - the handle's own state
                await asyncio.sleep(0.01)
        assert [model.name for model in fleet.catalogue.models()] == ["demo"]
        assert (
            fleet.place(fleet.catalogue.resolve("demo"), "plain", None).verifier == worker.address
        )
        fleet.update("verifier", ())
        with pytest.raises(Unavailable, match="none found yet"):
            fleet.catalogue.models()
        async with asyncio.timeout(20):
            while seen[-1]:  # noqa: ASYNC110 - told by a task of the fleet
                await asyncio.sleep(0.001)


@asynccontextmanager
async def fleet_of(
    *workers: ScriptedWorker,
    drafters: tuple[ScriptedWorker, ...] = (),
    tokenizers: Tokenizers | None = None,
) -> AsyncIterator[Fleet]:
    """A fleet that has reached all of some verifiers and drafters."""
    loaded = tokenizers or {}
    async with Fleet(loaded, interval_ms=50, on_change=lambda _: None) as fleet:
        for name, tier in (("verifier", workers), ("drafter", drafters)):
            fleet.update(name, [each.address for each in tier])
        every = [each.address for each in (*workers, *drafters)]
        await happened(lambda: states(fleet) == dict.fromkeys(every, "ready"))
        yield fleet


def states(fleet: Fleet) -> dict[str, str]:
    """How each worker is, by address."""
    return {worker.address: worker.state for worker in fleet.workers()}


async def test_models_of_one_fingerprint_have_each_the_tokenizer_of_its_name() -> None:
    named = {"one": byte_level(), "other": byte_level()}
    workers = [ScriptedWorker(model=name, tokenizer_fingerprint="f") for name in (*named, "third")]
    async with serving(*workers), fleet_of(*workers, tokenizers={"f": named}) as fleet:
        found = {model.name: model.tokenizer for model in fleet.catalogue.models()}
    assert found == named | {"third": named["other"]}


async def test_a_model_that_is_being_replaced_is_still_there() -> None:
    big, small = ScriptedWorker(model="big"), ScriptedWorker(model="small")
    async with serving(big, small), fleet_of(big, small) as fleet:
        fleet.update("verifier", {small.address})
        for _ in range(2):  # while it drains, and when it has ended
            for scope in (None, {"big", "small"}):
                with pytest.raises(Unavailable, match="no verifier of 'big' is reachable"):
                    fleet.catalogue.resolve("big", scope)
                with pytest.raises(InvalidArgument, match="must name one of big, small"):
                    fleet.catalogue.resolve("", scope)
            with pytest.raises(NotFound, match="no 'huge' here; served: big, small"):
                fleet.catalogue.resolve("huge")
            assert fleet.catalogue.resolve("", {"small"}).name == "small"
            assert [model.name for model in fleet.catalogue.models()] == ["small"]
            await big.stop()
            await happened(lambda: big.address not in {each.address for each in fleet.workers()})
        await big.start(int(big.address.rpartition(":")[2]))
        fleet.update("verifier", {big.address, small.address})
        await happened(lambda: fleet.verifier(big.address).present)
        assert fleet.catalogue.resolve("big").name == "big"


async def test_drafts_are_on_offer_while_the_only_drafter_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker, drafter = ScriptedWorker(), ScriptedWorker(tier="drafter")
    async with serving(worker, drafter), fleet_of(worker, drafters=(drafter,)) as fleet:
        model = fleet.catalogue.resolve("")
        assert fleet.place(model, "draft").drafters == (drafter.address,)
        fleet.update("drafter", ())
        for there in (True, False):  # while it drains, and when it has ended
            await happened(lambda there=there: (drafter.address in states(fleet)) is there)
            assert fleet.catalogue.resolve("").methods == ("plain", "draft")
            placement = fleet.place(model, "draft")
            assert (placement.method, placement.drafters) == ("draft", ())
            await drafter.stop()
        await drafter.start(int(drafter.address.rpartition(":")[2]))
        fleet.update("drafter", {drafter.address})
        assert fleet.place(model, "draft").drafters == (), "it is not reached yet"
        await happened(lambda: fleet.place(model, "draft").drafters == (drafter.address,))
        monkeypatch.setattr(remembered, "_REMEMBERED_S", -1.0)  # an hour later
        fleet.update("drafter", ())
        await drafter.stop()
        await happened(lambda: drafter.address not in states(fleet))
        assert fleet.catalogue.resolve("").methods == ("plain",)
        with pytest.raises(FailedPrecondition, match="no drafter is configured"):
            fleet.place(model, "draft")


@pytest.mark.parametrize("unlisted", [False, True])
async def test_a_method_whose_only_verifier_is_replaced_is_worth_another_try(
    unlisted: bool,
) -> None:
    plain, able = ScriptedWorker(), ScriptedWorker(methods=["plain", "medusa"])
    async with serving(plain, able), fleet_of(plain, able) as fleet:
        model = fleet.catalogue.resolve("")
        numerics = fleet.place(model, "medusa").numerics
        if unlisted:
            fleet.update("verifier", {plain.address})
        await able.stop()
        await happened(lambda: states(fleet).get(able.address, "lost") == "lost")
        assert "medusa" in fleet.catalogue.resolve("").methods
        with pytest.raises(Unavailable, match="no verifier that runs medusa is available"):
            fleet.place(model, "medusa")
        begun = fleet.go_on(model, "medusa", numerics, tokens=20)
        assert (begun.verifier, begun.method) == (plain.address, "plain"), "the text needs none"


async def test_what_was_begun_waits_for_a_model_that_a_gateway_has_never_seen() -> None:
    small = ScriptedWorker(model="small")
    async with serving(small), fleet_of(small) as fleet:
        with pytest.raises(Unavailable, match="no verifier of 'big' is reachable"):
            fleet.catalogue.resolve("big", numerics="n")
        with pytest.raises(NotFound):
            fleet.catalogue.resolve("big")


async def test_who_is_listed_no_longer_is_followed_to_its_end() -> None:
    staying, leaving = ScriptedWorker(), Retiring()
    leaving.status.running = 2  # of another gateway
    async with serving(staying, leaving), fleet_of(staying, leaving) as fleet:
        assert set(states(fleet).values()) == {State.READY}
        fleet.update("verifier", {staying.address})
        for _ in range(2):  # it may be drained twice
            assert await fleet.drain(leaving.address, 7) == 2
            assert states(fleet) == {staying.address: "ready", leaving.address: "draining"}
        assert (
            fleet.place(fleet.catalogue.resolve(""), "plain", leaving.address).verifier
            == staying.address
        )
        assert [(pool.ready, pool.desired) for pool in fleet.pools()] == [(1, 1)]
        leaving.status = worker_pb2.WatchStatusResponse(accepting=False)
        await happened(lambda: [view.address for view in fleet.workers()] == [staying.address])
        with pytest.raises(NotFound):
            await fleet.drain(leaving.address, 7)


async def test_who_is_listed_again_is_taken_back_at_once() -> None:
    worker = ScriptedWorker()
    async with serving(worker), fleet_of(worker) as fleet:
        handle = fleet.verifier(worker.address)
        fleet.update("verifier", ())
        with pytest.raises(Unavailable, match="has left the fleet"):
            fleet.verifier(worker.address)
        fleet.update("verifier", {worker.address})
        assert fleet.verifier(worker.address) is handle
        assert [view.state for view in fleet.workers()] == ["ready"]


async def test_each_verifier_tries_drafters_however_requests_take_turns() -> None:
    first, second = ScriptedWorker(), ScriptedWorker()
    good, slow = ScriptedWorker(tier="drafter"), ScriptedWorker(tier="drafter")
    slow.status.step_ms = 100
    async with serving(good, slow):
        known = worker_pb2.PairStatus(drafter=good.address, rounds=999, gain=3.0)
        for each in (first, second):
            each.status.plain_step_ms = 10
            each.status.pairs.append(known)
        async with serving(first, second), fleet_of(first, second, drafters=(good, slow)) as fleet:
            model, tried = fleet.catalogue.resolve(""), Counter[str]()
            for each in 16 * (first, second):
                placement = fleet.place(model, "draft", each.address)
                tried[placement.verifier] += placement.drafters[0] == slow.address
            assert tried == {first.address: 2, second.address: 2}


async def test_a_request_is_placed_where_there_is_room_for_all_of_it() -> None:
    short, long = ScriptedWorker(max_model_len=20), ScriptedWorker()
    long.status.running = 5  # the other one looks idle, and is preferred
    async with serving(short, long), fleet_of(short, long) as fleet:
        model = fleet.catalogue.resolve("demo")
        await happened(lambda: fleet.verifier(long.address).candidate.sequences == 5)
        assert fleet.place(model, "plain", tokens=20).verifier == short.address
        assert fleet.place(model, "plain", tokens=21).verifier == long.address
