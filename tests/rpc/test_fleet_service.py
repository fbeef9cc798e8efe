"""The operators' service: who may call it, what it tells, and that a drained worker is left."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from paceline.v1 import fleet_pb2, inference_pb2, worker_pb2

from gateway import fleet, fleet_service, workers
from gateway.auth.config import AuthConfig
from gateway.auth.token_file import token_hash
from gateway.fleet_service import is_local
from tests.certificates import Authority
from tests.rpc.gateways import Gateway, gateway, ids_of
from tests.scripted_workers import ScriptedWorker, serving
from tests.waiting import until

KEY = ec.generate_private_key(ec.SECP256R1())

TOKENS = f"""
tenants:
  staff:
    operator: true
    tokens:
      - sha256: {token_hash("operator")}
      - sha256: {token_hash("intern")}
        operator: false
  acme:
    tokens:
      - sha256: {token_hash("customer")}
      - sha256: {token_hash("promoted")}
        operator: true
"""


class Retiring(ScriptedWorker):
    """A worker that can be drained."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.graces: list[int] = []

    async def Drain(self, request, context):
        self.graces.append(request.grace_s)
        self.status = worker_pb2.WatchStatusResponse(
            accepting=False, running=self.status.running, step_ms=10
        )
        return worker_pb2.DrainResponse(remaining=self.status.running)


def token(name: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {name}"),), "timeout": 10}


@pytest.fixture
def auth(tmp_path: Path) -> AuthConfig:
    (tmp_path / "tokens.yaml").write_text(TOKENS)
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "one"}]}))
    return AuthConfig(
        tokens=tmp_path / "tokens.yaml",
        jwks=str(tmp_path / "keys.json"),
        jwt_issuer="us",
        jwt_audience="paceline",
        jwt_operator_scope="fleet.operate",
    )


def signed(tenant: str, scope: object) -> str:
    claims = {"iss": "us", "aud": "paceline", "exp": time.time() + 60, "tenant": tenant}
    return jwt.encode({**claims, "scope": scope}, KEY, algorithm="ES256", headers={"kid": "one"})


async def look(target: Gateway, **options: Any) -> fleet_pb2.WatchFleetResponse:
    call = target.operators.WatchFleet(
        fleet_pb2.WatchFleetRequest(interval_ms=50), **{"timeout": 10, **options}
    )
    try:
        async for message in call:
            return message
        raise AssertionError("it ended")
    finally:
        call.cancel()


async def follow(target: Gateway) -> AsyncIterator[fleet_pb2.WatchFleetResponse]:
    call = target.operators.WatchFleet(fleet_pb2.WatchFleetRequest(interval_ms=50), timeout=20)
    async for message in call:
        yield message


async def test_what_it_tells() -> None:
    pair = worker_pb2.PairStatus(alive=True, rounds=5, drafted_tokens=20, acceptance=0.75)
    verifier = ScriptedWorker(pool="h100", accelerator="H100", tokenizer_fingerprint="t")
    drafter = ScriptedWorker(tier="drafter", pool="t4", model="small", tokenizer_fingerprint="t")
    misfit = ScriptedWorker(tier="drafter", pool="t4", tokenizer_fingerprint="other")
    async with serving(drafter, misfit):
        pair.drafter = drafter.address
        verifier.status = worker_pb2.WatchStatusResponse(
            accepting=True, running=3, waiting=1, step_ms=10, tokens=99, pairs=[pair]
        )
        async with (
            serving(verifier),
            gateway(verifier.address, drafters=(drafter.address, misfit.address)) as target,
        ):
            seen = await look(target)
    first, *others = seen.workers
    assert first.description == verifier.description
    assert first.status == verifier.status
    assert first.state == fleet_pb2.WORKER_STATE_READY
    assert {each.address for each in others} == {drafter.address, misfit.address}
    assert {each.tier for each in others} == {worker_pb2.TIER_DRAFTER}
    pairs = {each.drafter: each for each in seen.pairs}
    assert pairs[drafter.address].measured == pair
    assert pairs[drafter.address].offered
    assert pairs[drafter.address].misfit == ""
    assert "tokenizer" in pairs[misfit.address].misfit
    assert not pairs[misfit.address].offered
    assert not pairs[misfit.address].HasField("measured")
    assert {(each.tier, each.pool, each.ready) for each in seen.pools} == {
        (worker_pb2.TIER_VERIFIER, "h100", 1),
        (worker_pb2.TIER_DRAFTER, "t4", 2),
    }


async def test_a_look_at_many_pairs_lets_requests_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_AT_ONCE", 1)
    known = [ScriptedWorker(), *(ScriptedWorker(tier="drafter") for _ in range(3))]
    async with serving(*known):
        verifier, *drafters = [worker.address for worker in known]
        async with gateway(verifier, drafters=drafters) as target:
            looking = asyncio.create_task(target.fleet.snapshot())
            turns = 0
            while not looking.done():
                turns += 1
                await asyncio.sleep(0)
    assert len(looking.result().pairs) == 3
    assert turns > 3


async def test_a_worker_is_followed_to_its_end() -> None:
    staying, leaving = Retiring(), Retiring(incarnation=2)
    leaving.status.running = 2
    async with serving(staying, leaving), gateway(staying.address, leaving.address) as target:
        request = fleet_pb2.DrainWorkerRequest(address=leaving.address, grace_s=7)
        states = []
        async for message in follow(target):
            states += [w.state for w in message.workers if w.address == leaving.address]
            if len(states) == 1:
                answer = await target.operators.DrainWorker(request, timeout=10)
                assert answer.remaining == 2
            if states[-1] == fleet_pb2.WORKER_STATE_DRAINING:
                leaving.status = worker_pb2.WatchStatusResponse(accepting=False)
            if states[-1] == fleet_pb2.WORKER_STATE_LOST:
                break
        order = [state for index, state in enumerate(states) if state not in states[:index]]
        assert order == [
            fleet_pb2.WORKER_STATE_READY,
            fleet_pb2.WORKER_STATE_DRAINING,
            fleet_pb2.WORKER_STATE_LOST,
        ]
        await target.generate(token_ids=ids_of(1))
    assert (leaving.graces, staying.graces) == ([7], [])
    assert (len(leaving.requests), len(staying.requests)) == (0, 1)


async def test_what_cannot_be_drained() -> None:
    verifier = Retiring()
    async with serving(verifier), gateway(verifier.address) as target:
        for address, code in (("nowhere:1", "NOT_FOUND"), ("", "NOT_FOUND")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await target.operators.DrainWorker(
                    fleet_pb2.DrainWorkerRequest(address=address), timeout=10
                )
            assert caught.value.code() is grpc.StatusCode[code]
        handle = target.fleet.verifier(verifier.address)
        await verifier.stop()
        await until(lambda: not handle.present)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.operators.DrainWorker(
                fleet_pb2.DrainWorkerRequest(address=verifier.address), timeout=10
            )
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"verifier {verifier.address}" in str(caught.value.details())
        seen = await look(target)
        assert [each.state for each in seen.workers] == [fleet_pb2.WORKER_STATE_LOST]


class Hung(ScriptedWorker):
    """A worker that never says that it drains."""

    async def Drain(self, request, context):
        await asyncio.Event().wait()


async def test_a_worker_that_does_not_answer_is_not_taken_for_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "_DRAIN_TIMEOUT_S", 0.1)
    verifier = Hung()
    async with serving(verifier), gateway(verifier.address) as target:
        request = fleet_pb2.DrainWorkerRequest(address=verifier.address)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await target.operators.DrainWorker(request, timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == f"verifier {verifier.address} did not answer in 0.1 s"


async def test_looks_are_not_too_close() -> None:
    verifier = ScriptedWorker()
    async with serving(verifier), gateway(verifier.address) as target:
        call = target.operators.WatchFleet(fleet_pb2.WatchFleetRequest(interval_ms=49), timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.details() == "interval_ms: must be 0 or at least 50, got 49"


def calls(target: Gateway, options: dict[str, Any]) -> list[Any]:
    drain = fleet_pb2.DrainWorkerRequest(address="secret:1")
    return [look(target, **options), target.operators.DrainWorker(drain, **options)]


async def refused(target: Gateway, options: dict[str, Any]) -> set[tuple[str, str]]:
    said = set()
    for call in calls(target, options):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        said.add((caught.value.code().name, str(caught.value.details())))
    return said


async def test_only_operators_may_look_or_touch(auth: AuthConfig) -> None:
    verifier = Retiring(model="secret", pool="secret")
    drain = fleet_pb2.DrainWorkerRequest
    async with serving(verifier), gateway(verifier.address, auth=auth) as target:
        for name in ("customer", "intern", signed("acme", "read write"), signed("acme", 7)):
            said = await refused(target, token(name))
            assert said == {("PERMISSION_DENIED", "these credentials are not an operator's")}
            models = inference_pb2.ListModelsRequest()
            assert (await target.stub.ListModels(models, **token(name))).models
        for options in ({"timeout": 10}, token("wrong"), token(signed("nobody", "fleet.operate"))):
            said = await refused(target, options)
            assert said == {("UNAUTHENTICATED", "a valid bearer token is needed")}
        assert verifier.graces == []
        scoped = (signed("acme", "read fleet.operate"), signed("acme", ["fleet.operate"]))
        for name in ("operator", "promoted", signed("staff", None), *scoped):
            assert [w.address for w in (await look(target, **token(name))).workers] == [
                verifier.address
            ]
        request = drain(address=verifier.address)
        await target.operators.DrainWorker(request, **token("operator"))
    assert verifier.graces == [0]


async def test_without_tokens_only_this_machine_is_the_operators(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verifier = Retiring()
    tls = Authority("ours").issue(tmp_path)
    async with serving(verifier), gateway(verifier.address, tls=tls) as target:
        assert (await look(target)).workers
        monkeypatch.setattr(fleet_service, "is_local", lambda peer: False)
        ((code, reason),) = await refused(target, {"timeout": 10})
        assert (code, "from its own machine" in reason) == ("PERMISSION_DENIED", True)
    assert verifier.graces == []


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("ipv4:127.0.0.1:5000", True),
        ("ipv4:127.0.0.6:5000", False),
        ("ipv6:[::1]:5000", True),
        ("ipv6:%5B::1%5D:5000", True),
        ("unix:/run/gateway", True),
        ("ipv4:10.0.0.1:5000", False),
        ("ipv6:[fe80::1]:5000", False),
        ("ipv6:[::ffff:10.0.0.1]:5000", False),
        ("ipv6:[::ffff:127.0.0.1]:5000", True),
        ("vsock:1", False),
        ("", False),
    ],
)
def test_who_is_local(peer: str, local: bool) -> None:
    assert is_local(peer) is local


async def test_watches_end_with_the_gateway() -> None:
    verifier = ScriptedWorker()
    async with serving(verifier), gateway(verifier.address) as target:
        looks = 0
        async for _ in follow(target):
            looks += 1
            await target.fleet_service.end()
        assert looks == 1
