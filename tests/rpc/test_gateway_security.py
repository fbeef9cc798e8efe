"""Who is let in, who is not, and what those learn: over TLS, with tokens, between the tiers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import paceline
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from paceline import errors
from paceline.v1 import drafter_pb2, inference_pb2, inference_pb2_grpc, types_pb2, verifier_pb2

from common.errors import (
    FailedPrecondition,
    PacelineError,
    ResourceExhausted,
    StartupError,
    Unavailable,
)
from common.rpc.channel import Line
from common.rpc.server import start
from common.tls_config import TlsConfig
from gateway.auth.config import AuthConfig
from gateway.auth.token_file import token_hash
from gateway.config import FailoverConfig
from gateway.fleet import Fleet
from gateway.workers import WorkerHandle
from tests.certificates import Authority
from tests.rpc.gateways import Gateway, gateway, ids_of
from tests.rpc.services import ScriptedDrafter
from tests.rpc.texts import KeyedVerifier
from tests.scripted_workers import NUMERICS, ScriptedWorker, serving
from tests.waiting import until

OURS, THEIRS = Authority("ours"), Authority("theirs")

TOKENS = f"""
tenants:
  acme:
    models: [demo]
    max_concurrent: 1
    tokens_per_s: 0.001
    burst_tokens: 11
    tokens:
      - sha256: {token_hash("acme")}
  other:
    tokens:
      - sha256: {token_hash("other")}
      - sha256: {token_hash("expired")}
        expires: 2020-01-01
  metered:
    tokens_per_s: 0.001
    burst_tokens: 20
    tokens:
      - sha256: {token_hash("metered")}
  third:
    tokens:
      - sha256: {token_hash("third")}
"""


@pytest.fixture
def auth(tmp_path: Path) -> AuthConfig:
    (tmp_path / "tokens.yaml").write_text(TOKENS)
    return AuthConfig(tokens=tmp_path / "tokens.yaml")


def calls(target: Gateway, token: str | None) -> list[Any]:
    """Every call of the service."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    options = {"metadata": metadata, "timeout": 10}

    async def generate() -> None:
        request = inference_pb2.GenerateRequest(token_ids=ids_of(1), model="secret")
        async for _ in target.stub.Generate(request, **options):
            pass

    return [
        generate(),
        target.stub.ListModels(inference_pb2.ListModelsRequest(), **options),
        target.stub.Tokenize(inference_pb2.TokenizeRequest(text="x", model="secret"), **options),
        target.stub.Detokenize(
            inference_pb2.DetokenizeRequest(token_ids=[1], model="secret"), **options
        ),
    ]


@pytest.mark.parametrize("token", [None, "wrong", "expired", token_hash("acme")])
async def test_strangers_learn_nothing(auth: AuthConfig, token: str | None) -> None:
    verifier = ScriptedWorker(model="secret")
    async with serving(verifier), gateway(verifier.address, auth=auth) as target:
        for call in calls(target, token):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert caught.value.details() == "a valid bearer token is needed"
    assert verifier.requests == []


async def test_reflection_and_health_need_no_token(auth: AuthConfig) -> None:
    verifier = ScriptedWorker()
    async with (
        serving(verifier),
        gateway(verifier.address, auth=auth) as target,
        Line(f"127.0.0.1:{target.server.port}", TlsConfig()).open() as channel,
    ):
        assert await target.serving()
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo([asked])
        (answer,) = [answer async for answer in call]
    names = {service.name for service in answer.list_services_response.service}
    assert {"paceline.v1.Inference", "paceline.v1.Fleet", "grpc.health.v1.Health"} <= names


def sdk(target: Gateway, **options: Any) -> paceline.AsyncClient:
    return paceline.AsyncClient(f"127.0.0.1:{target.server.port}", **options)


async def test_a_scope_hides_other_models(auth: AuthConfig) -> None:
    demo, secret = ScriptedWorker(), ScriptedWorker(model="secret")
    async with (
        serving(demo, secret),
        gateway(demo.address, secret.address, auth=auth) as target,
        sdk(target, token="acme") as acme,
        sdk(target, token=lambda: "other") as other,
    ):
        assert [model.name for model in await acme.models()] == ["demo"]
        assert [model.name for model in await other.models()] == ["demo", "secret"]
        said = set()
        for name in ("secret", "no-such-model"):
            with pytest.raises(errors.PermissionDeniedError) as caught:
                await acme.generate(token_ids=[1], model=name).result()
            said.add(str(caught.value))
        assert said == {"model: these credentials do not cover it"}
        await acme.generate(token_ids=[1]).result()  # the only one it knows of
    assert len(demo.requests) == 1


async def test_a_tenant_has_its_own_limits(auth: AuthConfig) -> None:
    verifier = ScriptedWorker()
    verifier.messages, verifier.hold = [([5, 6], [2, 2])], asyncio.Event()
    async with (
        serving(verifier),
        gateway(verifier.address, auth=auth) as target,
        sdk(target, token="acme") as acme,
        sdk(target, token="other") as other,
    ):
        running = asyncio.create_task(acme.generate(token_ids=[1] * 10).result())
        await until(lambda: len(verifier.requests) == 1)
        with pytest.raises(errors.ResourceExhaustedError, match="this tenant are running"):
            await acme.tokenize("x")
        others = asyncio.create_task(other.generate(token_ids=[1]).result())
        await until(lambda: len(verifier.requests) == 2)
        verifier.hold.set()
        await running
        await others
        with pytest.raises(errors.ResourceExhaustedError, match=r"tokens are used up .*retry in"):
            await acme.generate(token_ids=[1]).result()
        await other.generate(token_ids=[1]).result()


async def test_what_is_resumed_counts_once_it_is_over(auth: AuthConfig) -> None:
    """All that come over from a lost gateway go on; what follows has to wait."""
    verifier = ScriptedWorker()
    verifier.messages, verifier.hold = [([5], [2])], asyncio.Event()
    request = inference_pb2.GenerateRequest(
        token_ids=ids_of(1),
        max_tokens=11,
        sampling=types_pb2.SamplingParams(seed=1),
        resume=inference_pb2.Resume(
            token_ids=[7] * 10, sources=[2] * 10, rounds=10, numerics=NUMERICS
        ),
    )
    metadata = (("authorization", "Bearer metered"),)
    async with serving(verifier), gateway(verifier.address, auth=auth) as target:
        running = []
        for number in (1, 2, 3):
            running.append(target.stub.Generate(request, metadata=metadata))
            await until(lambda number=number: len(verifier.requests) == number)
        verifier.hold.set()
        for call in running:
            assert [message async for message in call]
        with pytest.raises(grpc.aio.AioRpcError, match="tokens are used up"):
            await target.stub.Generate(request, metadata=metadata).read()


@pytest.mark.parametrize(
    ("failure", "after", "charged"),
    [
        (ResourceExhausted("all places are taken"), 0, False),
        (Unavailable("the power went"), 0, False),
        (PacelineError("the engine failed"), 0, False),
        (PacelineError("the engine failed"), 1, True),
        (FailedPrecondition("not here"), 0, True),
    ],
)
async def test_a_prompt_that_no_verifier_took_is_not_charged(
    auth: AuthConfig, failure: PacelineError, after: int, charged: bool
) -> None:
    verifier = KeyedVerifier()
    verifier.failure, verifier.fails_after = failure, after
    request = inference_pb2.GenerateRequest(token_ids=ids_of(*range(21)), max_tokens=5)
    metadata, once = (("authorization", "Bearer metered"),), FailoverConfig(attempts=1)
    async with serving(verifier), gateway(verifier.address, auth=auth, failover=once) as target:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError):
                [_ async for _ in target.stub.Generate(request, metadata=metadata)]
    assert len(verifier.requests) == (1 if charged else 2)


async def test_a_flood_of_one_tenant_leaves_room_for_another(auth: AuthConfig) -> None:
    verifier = ScriptedWorker()
    verifier.hold = asyncio.Event()
    async with (
        serving(verifier),
        gateway(verifier.address, auth=auth, max_concurrent=16) as target,
        sdk(target, token="other") as flood,
        sdk(target, token="acme") as acme,
        sdk(target, token="third") as third,
    ):
        one = asyncio.create_task(acme.generate(token_ids=[1]).result())
        await until(lambda: len(verifier.requests) == 1)
        many = [asyncio.create_task(flood.generate(token_ids=[1]).result()) for _ in range(20)]
        await until(lambda: sum(task.done() for task in many) == 6)
        for task in many:
            if task.done():
                assert isinstance(task.exception(), errors.ResourceExhaustedError)
        assert target.admission.running == 15
        two = asyncio.create_task(third.generate(token_ids=[1]).result())
        await until(lambda: target.admission.running == 16)
        verifier.hold.set()
        await asyncio.gather(one, two)
        await asyncio.gather(*many, return_exceptions=True)
        await acme.models()


def files(directory: Path) -> dict[str, Path]:
    return {
        "ca": directory / "ca.pem",
        "cert": directory / "cert.pem",
        "key": directory / "key.pem",
    }


async def test_mutual_tls_lets_in_whom_it_knows(tmp_path: Path) -> None:
    tls = OURS.issue(tmp_path / "gateway")
    OURS.issue(tmp_path / "client")
    THEIRS.issue(tmp_path / "stranger", ca=OURS)
    verifier = ScriptedWorker()
    async with serving(verifier), gateway(verifier.address, tls=tls) as target:
        async with sdk(target, tls=paceline.Tls(**files(tmp_path / "client"))) as client:
            assert [model.name for model in await client.models()] == ["demo"]
        nobody = [
            {"tls": paceline.Tls(**files(tmp_path / "stranger"))},
            {"tls": paceline.Tls(ca=tmp_path / "client" / "ca.pem")},
            {"tls": paceline.Tls()},
            {},
        ]
        for options in nobody:
            async with sdk(target, **options) as client:
                with pytest.raises(errors.UnavailableError) as caught:
                    await client.models()
            assert "demo" not in str(caught.value)


async def connects(port: int, directory: Path) -> bool:
    """Whether a new connection is accepted."""
    line = Line(f"127.0.0.1:{port}", TlsConfig(**files(directory)))
    async with line.open() as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        try:
            await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.UNAVAILABLE
        return True


async def test_certificates_are_rotated_without_a_restart(tmp_path: Path) -> None:
    tls = OURS.issue(tmp_path / "gateway")
    OURS.issue(tmp_path / "old")
    THEIRS.issue(tmp_path / "new")
    verifier = ScriptedWorker()
    async with serving(verifier), gateway(verifier.address, tls=tls) as target:
        assert await connects(target.server.port, tmp_path / "old")
        assert not await connects(target.server.port, tmp_path / "new")
        standing = await target.stub.ListModels(inference_pb2.ListModelsRequest())
        THEIRS.issue(tmp_path / "gateway")
        assert await connects(target.server.port, tmp_path / "new")
        assert not await connects(target.server.port, tmp_path / "old")
        assert await target.stub.ListModels(inference_pb2.ListModelsRequest()) == standing


async def test_the_fleet_speaks_mutual_tls_and_follows_a_rotation(tmp_path: Path) -> None:
    worker = OURS.issue(tmp_path / "worker")
    fleet = OURS.issue(tmp_path / "gateway")
    verifier = ScriptedWorker()
    await verifier.start(tls=worker)
    port = int(verifier.address.rpartition(":")[2])
    async with gateway(verifier.address, fleet_tls=fleet) as target:
        await target.generate(token_ids=ids_of(1))
        handle = target.fleet.verifier(verifier.address)
        await verifier.stop()
        await until(lambda: not handle.present)
        THEIRS.issue(tmp_path / "worker")
        await verifier.start(port, tls=worker)
        with pytest.raises(grpc.aio.AioRpcError):
            await target.generate(token_ids=ids_of(1))
        THEIRS.issue(tmp_path / "gateway")
        await until(lambda: handle.present)
        await target.generate(token_ids=ids_of(1))
    await verifier.stop()


async def test_a_rotation_caught_half_way_loses_no_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = OURS.issue(tmp_path / "worker")
    fleet = OURS.issue(tmp_path / "gateway")
    assert fleet.key is not None
    verifier = ScriptedWorker()
    await verifier.start(tls=worker)
    port = int(verifier.address.rpartition(":")[2])
    async with gateway(verifier.address, fleet_tls=fleet) as target:
        handle = target.fleet.verifier(verifier.address)
        await verifier.stop()
        fleet.key.unlink()
        fleet.key.mkdir()  # is there, and cannot be read
        await until(lambda: "certificates cannot be used" in caplog.messages)
        fleet.key.rmdir()
        for each in ("worker", "gateway"):
            THEIRS.issue(tmp_path / each)
        await verifier.start(port, tls=worker)
        await until(lambda: handle.present)
        await target.generate(token_ids=ids_of(1))
    await verifier.stop()


async def test_a_worker_found_during_a_rotation_is_taken_in_after_it(tmp_path: Path) -> None:
    tls, other = OURS.issue(tmp_path / "gateway"), OURS.issue(tmp_path / "other")
    assert tls.key is not None
    assert other.key is not None
    key = tls.key.read_bytes()
    async with Fleet({}, interval_ms=50, on_change=lambda _: None, tls=tls) as fleet:
        fleet.update("verifier", {"127.0.0.1:1"})
        tls.key.write_bytes(other.key.read_bytes())  # half-way: not the certificate's
        with pytest.raises(StartupError, match="cannot be used together"):
            fleet.update("verifier", {"127.0.0.1:2"})
        assert [worker.address for worker in fleet.workers()] == ["127.0.0.1:1"]
        tls.key.write_bytes(key)
        fleet.update("verifier", {"127.0.0.1:2"})
        assert [worker.address for worker in fleet.workers()] == ["127.0.0.1:2"]


async def test_who_calls_while_the_old_connection_ends_has_the_new_one() -> None:
    verifier = ScriptedWorker()
    async with serving(verifier):
        handle = WorkerHandle(verifier.address, "verifier", interval_ms=50, on_change=lambda: None)
        former, closed, go_on = handle._channel, asyncio.Event(), asyncio.Event()
        close, former.close = former.close, lambda: closing()

        async def closing() -> None:
            await close()
            closed.set()
            await go_on.wait()

        handle._outdated = True
        renewing = asyncio.create_task(handle._reconnect())
        await closed.wait()
        call = handle.stub.Generate(verifier_pb2.VerifierGenerateRequest())
        assert (await call.read()).HasField("complete")
        go_on.set()
        await renewing
        await handle._channel.close()


@pytest.mark.parametrize("stranger", [True, False])
async def test_a_worker_refuses_who_is_not_of_the_fleet(tmp_path: Path, stranger: bool) -> None:
    verifier = ScriptedWorker()
    await verifier.start(tls=OURS.issue(tmp_path / "worker"))
    fleet = THEIRS.issue(tmp_path / "gateway", ca=OURS) if stranger else None
    async with gateway(verifier.address, fleet_tls=fleet, ready=False) as target:
        handle = target.fleet.verifier(verifier.address)
        await until(lambda: handle._told)
        assert not handle.present
        assert handle.candidate is None
    await verifier.stop()


async def test_one_name_serves_workers_called_by_address(tmp_path: Path) -> None:
    verifier = ScriptedWorker()
    await verifier.start(tls=OURS.issue(tmp_path / "worker"))
    issued = OURS.issue(tmp_path / "gateway")
    for name, fits in (("worker", True), ("somebody", False)):
        named = TlsConfig(cert=issued.cert, key=issued.key, ca=issued.ca, server_name=name)
        async with gateway(verifier.address, fleet_tls=named, ready=False) as target:
            handle = target.fleet.verifier(verifier.address)
            await until(lambda handle=handle: handle.present or handle._told)
            assert handle.present is fits
    await verifier.stop()


async def test_the_draft_stream_speaks_mutual_tls(tmp_path: Path) -> None:
    from verifier.draft_stream import GrpcDraftLink

    class Engine:
        def post(self, note: Any) -> None:
            pass

    class Proposer:
        def lost(self, link: Any) -> None:
            pass

    drafter = ScriptedDrafter()

    def register(target: grpc.aio.Server) -> list[str]:
        from paceline.v1 import drafter_pb2_grpc

        drafter_pb2_grpc.add_DrafterServicer_to_server(drafter, target)
        return ["paceline.v1.Drafter"]

    tls = OURS.issue(tmp_path / "drafter")
    started = await start(register=register, host="127.0.0.1", port=0, tls=tls)
    address, loop = f"127.0.0.1:{started.port}", asyncio.get_running_loop()
    hello = drafter_pb2.Hello(vocab_size=9)
    for issued, fits in (
        (OURS.issue(tmp_path / "verifier"), True),
        (THEIRS.issue(tmp_path / "stranger", ca=OURS), False),
        (TlsConfig(), False),
        (TlsConfig(ca=tmp_path / "nowhere"), False),
    ):
        link = GrpcDraftLink(address, hello, Engine(), Proposer(), loop, issued)  # type: ignore[arg-type]
        assert not link.reach()
        await until(lambda link=link: link.up or link._not_before > 0)
        assert link.up is fits
        await link.stop()
    await started.stop()


async def test_a_certificate_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    nowhere = TlsConfig(cert=tmp_path / "c", key=tmp_path / "k", ca=tmp_path / "a")
    with pytest.raises(StartupError, match=r"tls: .*No such file"):
        await start(register=lambda _: [], host="127.0.0.1", port=0, tls=nowhere)
    with pytest.raises(paceline.ArgumentError, match=r"tls\.ca: cannot be read"):
        paceline.Client("h:1", tls=paceline.Tls(ca=tmp_path / "a"))
