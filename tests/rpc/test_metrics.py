"""What real services tell Prometheus, while requests run through all three."""

from __future__ import annotations

import asyncio
import socket
from itertools import zip_longest
from typing import Any

import grpc
import grpc.aio
import pytest
from paceline.v1 import inference_pb2, types_pb2

from common.errors import ResourceExhausted, StartupError, Unavailable
from common.model.runner import Runner
from common.telemetry import worker_metrics
from common.telemetry.metrics import Metric, exposed
from drafter import metrics as drafter_metrics
from gateway import metrics as gateway_metrics
from gateway.auth.caller import Caller
from gateway.config import FailoverConfig
from gateway.generation import CACHES
from gateway.watch import EXPECTED
from tests.rpc.gateways import Answer, Gateway, gateway, ids_of
from tests.rpc.services import drafting, verifying
from tests.scrapes import Scrape, scrape, scrape_port
from tests.scripted_workers import ScriptedWorker, serving
from tests.waiting import until
from verifier import metrics as verifier_metrics
from verifier.drafting import clock


def check(found: Scrape, metrics: tuple[Metric, ...], common: tuple[str, ...] = ()) -> None:
    """Everything declared is on the page as declared, and nothing else of ours."""
    declared = {metric.name.removesuffix("_total"): metric.kind for metric in metrics}
    ours = {name: kind for name, kind in found.families.items() if name.startswith("paceline")}
    assert ours == declared
    for metric in metrics:
        sample = f"{metric.name}_count" if metric.kind == "histogram" else metric.name
        assert found.labels(sample) <= {frozenset((*common, *metric.labels))}


async def drafted_for(front: Gateway, request: dict[str, Any]) -> list[Answer]:
    """Asks until a drafter helps, twice at least: the first request only causes the connection."""
    answers: list[Answer] = []
    async with asyncio.timeout(60):
        while len(answers) < 2 or not answers[-1].complete.speculation.accepted_tokens:
            answers.append(await front.generate(**request))
    return answers


async def test_a_request_shows_on_all_tiers(
    target: Runner, twin: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_LEAST_PATIENCE_S", 10.0)  # drafters are waited for
    async with (
        drafting(twin) as drafter,
        verifying(target) as verifier,
        gateway(verifier.address, drafters=(drafter.address,)) as front,
    ):
        request = {
            "token_ids": ids_of(*range(5, 45)),
            "max_tokens": 40,
            "ignore_eos": True,
            "session_id": "conversation",
            "speculation": types_pb2.SpeculationOptions(method="draft", draft_tokens=5),
        }
        answers = await drafted_for(front, request)
        with pytest.raises(grpc.aio.AioRpcError):
            await front.generate(token_ids=ids_of(), max_tokens=4)
        await verifier.empty()
        await until(lambda: not front.admission.running)
        at_gateway = await scrape(front.metrics)
        at_verifier = await scrape(verifier.metrics)
        at_drafter = await scrape(drafter.metrics)

    check(at_gateway, gateway_metrics.METRICS)
    check(at_verifier, verifier_metrics.METRICS, worker_metrics.LABELS)
    check(at_drafter, drafter_metrics.METRICS, worker_metrics.LABELS)

    value, count = at_gateway.value, len(answers)
    assert value("paceline_requests_total", method="Generate", code="OK") == count
    assert value("paceline_requests_total", method="Generate", code="INVALID_ARGUMENT") == 1
    assert value("paceline_requests_in_flight") == 0
    kind = {"model": "demo", "operation": "text_completion"}
    for name in ("time_to_first_token", "time_per_output_token", "request_duration"):
        assert value(f"paceline_gen_ai_server_{name}_seconds_count", **kind) == count
    assert value("paceline_session_turns_total", cache="new") == 1
    assert value("paceline_session_turns_total", cache="kept") == count - 1
    assert value("paceline_store_available") == 1
    for tier, worker in (("verifier", verifier), ("drafter", drafter)):
        assert value("paceline_workers", tier=tier, state="ready") == 1
        assert value("paceline_worker_breaker_open", tier=tier, worker=worker.address) == 0
        assert value("paceline_desired_replicas", tier=tier) >= 1

    value, speculation = at_verifier.value, [answer.complete.speculation for answer in answers]
    accepted = sum(each.accepted_tokens for each in speculation)
    assert accepted > 0
    assert value("paceline_generation_tokens_total") == 40 * count
    assert value("paceline_prompt_tokens_total", model="demo", tier="verifier") == 40 * count
    cached = sum(answer.complete.usage.cached_tokens for answer in answers)
    assert value("paceline_prefix_cache_hits_total") == cached > 0
    drafted = sum(each.drafted_tokens for each in speculation)
    assert value("paceline_spec_decode_num_draft_tokens_total", method="draft") == drafted
    assert value("paceline_spec_decode_num_accepted_tokens_total", method="draft") == accepted
    by_position = zip_longest(*(each.accepted_per_position for each in speculation), fillvalue=0)
    for position, tokens in enumerate(by_position):
        name = "paceline_spec_decode_num_accepted_tokens_per_pos_total"
        assert value(name, method="draft", position=str(position)) == sum(tokens)
    assert value("paceline_pair_accepted_tokens_total", drafter=drafter.address) == accepted
    assert value("paceline_pair_alive", drafter=drafter.address) == 1
    steps = value("paceline_engine_step_seconds_count")
    assert steps >= sum(each.rounds for each in speculation)
    assert value("paceline_num_requests_running") == 0
    assert 0 <= value("paceline_kv_cache_usage_perc") < 1

    value = at_drafter.value
    assert 1 <= value("paceline_draft_sessions_opened_total", tier="drafter") <= count
    assert value("paceline_draft_branches_total") > 0
    assert value("paceline_drafted_tokens_total") >= accepted
    assert value("paceline_engine_step_seconds_count") > 0


def idle_and_busy() -> tuple[ScriptedWorker, ScriptedWorker]:
    """Two verifiers, of which the first is chosen."""
    idle, busy = ScriptedWorker(), ScriptedWorker(incarnation=2)
    busy.status.running = 5
    idle.messages = busy.messages = [([5], [types_pb2.TOKEN_SOURCE_RECOVERED])]
    return idle, busy


async def test_a_verifier_that_fails_shows_as_broken() -> None:
    failing, able = idle_and_busy()
    async with serving(failing, able), gateway(failing.address, able.address) as front:
        breaker = front.fleet.verifier(failing.address).breaker
        breaker._clock = lambda: 0.0  # so that it stays open
        while breaker.allows:
            breaker.failed()
        page = await scrape(front.metrics)
    assert page.value("paceline_worker_breaker_open", worker=failing.address) == 1
    assert page.value("paceline_worker_breaker_open", worker=able.address) == 0
    for state in ("broken", "ready"):
        assert page.value("paceline_workers", tier="verifier", state=state) == 1


async def test_what_is_not_there_is_told_as_none() -> None:
    """A series that ends, or begins with its first event, shows neither fall nor rise."""
    worker = ScriptedWorker(pool="p")
    async with (
        serving(worker),
        gateway(worker.address) as front,
        exposed("127.0.0.1", 0, front.metrics) as port,
    ):
        pages = [await scrape_port(port)]
        await worker.stop()
        await until(lambda: not front.fleet.verifier(worker.address).present)
        pages.append(await scrape_port(port))
        front.fleet.update("verifier", ())
        assert not front.fleet.workers()
        pages.append(await scrape_port(port))
    for state, counts in (("ready", [1, 0, 0]), ("lost", [0, 1, 0]), ("broken", [0, 0, 0])):
        labels = {"tier": "verifier", "pool": "p", "state": state}
        assert [page.value("paceline_workers", **labels) for page in pages] == counts
    for code in EXPECTED:
        assert pages[0].value("paceline_requests_total", method="Generate", code=code) == 0
    for cache in CACHES:
        assert pages[0].value("paceline_session_turns_total", cache=cache) == 0


async def test_a_generation_that_moves_is_counted() -> None:
    failing, able = idle_and_busy()
    failing.error = Unavailable("gone")
    async with serving(failing, able), gateway(failing.address, able.address) as front:
        await front.generate(token_ids=ids_of(5), max_tokens=1)
        page = await scrape(front.metrics)
    assert page.value("paceline_generation_moves_total") == 1
    assert page.value("paceline_generation_retries_total") == 1


async def test_a_generation_that_nobody_can_go_on_with_is_not_tried_again() -> None:
    """And leaves the retries that there are to others."""
    only = ScriptedWorker()
    only.error = ResourceExhausted("no blocks are free")
    few = FailoverConfig(retries_burst=1, retries_per_s=0.001)
    async with serving(only), gateway(only.address, failover=few) as front:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await front.generate(token_ids=ids_of(5), max_tokens=1)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        page = await scrape(front.metrics)
    assert page.value("paceline_generation_moves_total") == 0
    assert page.value("paceline_generation_retries_total") == 0


async def test_refusals_are_counted_by_tenant_up_to_a_number() -> None:
    async with gateway(ready=False, max_concurrent=1) as front:
        with front.admission.slot():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await front.stub.Tokenize(inference_pb2.TokenizeRequest(text="x"))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            for number in range(150):
                tenant = Caller(tenant=f"tenant-{number}")
                with pytest.raises(ResourceExhausted), front.admission.slot(tenant):
                    pass
        page = await scrape(front.metrics)
    code = {"method": "Tokenize", "code": "RESOURCE_EXHAUSTED"}
    assert page.value("paceline_requests_total", **code) == 1
    assert page.value("paceline_refusals_total", tenant="") == 1
    assert page.value("paceline_refusals_total", tenant="tenant-97") == 1
    assert page.value("paceline_refusals_total", tenant="other") == 52


async def test_a_port_that_is_taken_is_told() -> None:
    async with gateway(ready=False) as front:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(StartupError, match=f"metrics_port: cannot listen on port {port}"):
                async with exposed("127.0.0.1", port, front.metrics):
                    pass


async def test_no_port_serves_nothing() -> None:
    async with gateway(ready=False) as front, exposed("127.0.0.1", None, front.metrics) as port:
        assert port is None


async def test_pages_are_whole_one_after_the_other() -> None:
    async with (
        gateway(ready=False) as front,
        exposed("127.0.0.1", 0, front.metrics) as port,
    ):
        for _ in range(3):
            check(await scrape_port(port), gateway_metrics.METRICS)
