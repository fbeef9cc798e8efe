"""How often a generation is tried again, by whom, and how it is counted meanwhile."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from paceline.v1 import types_pb2

from common.errors import PacelineError, ResourceExhausted, Unavailable
from common.store.sessions import MemorySessions, SessionRecord
from gateway.backoff import Backoff
from gateway.config import FailoverConfig
from gateway.workers import WorkerHandle
from tests.rpc.answers import PROMPT, SEED, SICK, answer, failed
from tests.rpc.gateways import Gateway, gateway
from tests.rpc.texts import KeyedVerifier, text
from tests.scripted_workers import serving
from tests.waiting import until

FULL = ResourceExhausted("all places are taken")


async def busy(target: Gateway, *verifiers: KeyedVerifier) -> None:
    """Has them look busy, so that others are preferred: the later they stand the busier."""
    for number, each in enumerate(verifiers, 1):
        each.status.running = 5 * number
    for each in verifiers:
        handle = target.fleet.verifier(each.address)
        await until(lambda h=handle, e=each: h.candidate.load.running == e.status.running)


async def test_pauses_of_a_text_that_gets_on_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(backoff: Backoff) -> None:
        pauses.append(backoff._next_s)
        backoff._next_s *= 2

    monkeypatch.setattr(Backoff, "pause", pause)
    only = KeyedVerifier()
    only.fails_after = 5
    async with serving(only), gateway(only.address) as target:
        assert (await answer(target)).ids == text(SEED, PROMPT, 40)
    assert len(pauses) > 3
    assert len(set(pauses)) == 1


async def test_who_failed_a_text_before_another_token_came_may_go_on_with_it() -> None:
    first, sick = KeyedVerifier(), KeyedVerifier()
    first.fails_after, sick.fails_after, sick.failure = 5, 10, SICK
    async with serving(first, sick), gateway(first.address, sick.address) as target:
        await busy(target, sick)
        call = asyncio.create_task(answer(target))
        await first.failing.wait()
        first.fails_after = None
        assert (await call).ids == text(SEED, PROMPT, 40)
    assert (len(first.requests), len(sick.requests)) == (2, 1)


async def test_a_method_that_was_lost_is_gone_back_to() -> None:
    able, other = KeyedVerifier(methods=["plain", "eagle"]), KeyedVerifier()
    able.fails_after = other.fails_after = 5
    eagle = types_pb2.SpeculationOptions(method="eagle")
    async with serving(able, other), gateway(able.address, other.address) as target:
        call = asyncio.create_task(answer(target, speculation=eagle))
        await able.failing.wait()
        able.fails_after = None
        assert (await call).ids == text(SEED, PROMPT, 40)
    assert [each.speculation.method for each in able.requests] == ["eagle", "eagle"]
    assert [each.speculation.method for each in other.requests] == ["plain"]


async def test_a_stop_token_whose_report_is_lost_still_ends_the_text() -> None:
    only = KeyedVerifier()
    only.fails_after = 1  # which is a round
    ids = text(SEED, PROMPT, 1)
    async with serving(only), gateway(only.address) as target:
        found = await answer(target, stop_token_ids=ids)
    assert found.ids == ids
    assert found.complete.finish_reason == types_pb2.FINISH_REASON_STOP
    assert len(only.requests) == 1


async def test_no_more_is_cached_than_the_client_sent() -> None:
    """Though who goes on finds more of what it is sent."""
    only = KeyedVerifier()
    only.fails_after, only.cached = 20, 99
    async with serving(only), gateway(only.address) as target:
        found = await answer(target)
    assert found.complete.usage.cached_tokens == len(PROMPT)


@pytest.mark.parametrize("failure", [Unavailable("gone"), FULL])
@pytest.mark.parametrize("attempts", [1, 2])
async def test_so_many_in_a_row_fail_what_none_has_begun(
    attempts: int, failure: PacelineError
) -> None:
    fleet = [KeyedVerifier() for _ in range(3)]
    for each in fleet:
        each.fails_after, each.failure = 0, failure
    few = FailoverConfig(attempts=attempts, wait_s=5)
    async with serving(*fleet), gateway(*(each.address for each in fleet), failover=few) as target:
        assert (await failed(target)).code().name == failure.code
    assert sum(len(each.requests) for each in fleet) == attempts


async def test_full_ones_are_one_failure_where_a_text_waits_for_room() -> None:
    first, *others = fleet = [KeyedVerifier() for _ in range(3)]
    for each in fleet:
        each.fails_after, each.failure = 5 if each is first else 0, FULL
    waits = FailoverConfig(attempts=2, wait_s=20)
    async with (
        serving(*fleet),
        gateway(*(each.address for each in fleet), failover=waits) as target,
    ):
        await busy(target, *others)
        call = asyncio.create_task(answer(target))
        await until(lambda: call.done() or all(each.requests for each in fleet))
        for each in fleet:
            each.fails_after = None
        assert (await call).ids == text(SEED, PROMPT, 40)


async def test_where_no_retry_is_left_nobody_is_waited_for() -> None:
    only = KeyedVerifier()
    only.fails_after, only.failure = 5, None
    none = FailoverConfig(retries_burst=0, wait_s=60)
    async with serving(only), gateway(only.address, failover=none) as target:
        call = asyncio.create_task(failed(target))
        await only.failing.wait()
        await only.stop()
        async with asyncio.timeout(15):
            error = await call
    assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_sick_verifier_is_left_where_nothing_is_retried(unforgiving: None) -> None:
    sick, well = KeyedVerifier(), KeyedVerifier()
    sick.fails_after, sick.failure = 0, SICK
    never = FailoverConfig(attempts=1)
    async with serving(sick, well), gateway(sick.address, well.address, failover=never) as target:
        await busy(target, well)
        for _ in range(3):
            assert (await failed(target)).code() is grpc.StatusCode.INTERNAL
        assert (await answer(target)).ids == text(SEED, PROMPT, 40)


async def test_a_drafter_is_counted_while_it_is_drafted_for() -> None:
    verifier, drafter = KeyedVerifier(), KeyedVerifier(tier="drafter")
    verifier.fails_after, verifier.failure = 5, None
    options = types_pb2.SpeculationOptions(method="draft")
    async with (
        serving(verifier, drafter),
        gateway(verifier.address, drafters=(drafter.address,)) as target,
    ):
        handle = target.fleet._drafters.listed[drafter.address]
        call = asyncio.create_task(answer(target, speculation=options))
        await verifier.failing.wait()
        assert handle.in_flight_count == 1
        verifier.fails_after = None
        verifier.resumed.set()
        await call
        assert handle.in_flight_count == 0


class CountingStore(MemorySessions):
    """Takes down what runs on a verifier whenever a session is saved."""

    def __init__(self) -> None:
        super().__init__(60)
        self.handle: WorkerHandle | None = None
        self.counts: list[int] = []

    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        assert self.handle is not None
        self.counts.append(self.handle.in_flight_count)
        return await super().save(key, epoch, record)


async def test_a_verifier_is_counted_while_a_session_is_claimed_for_it() -> None:
    only, store = KeyedVerifier(), CountingStore()
    only.fails_after = 5
    async with serving(only), gateway(only.address, store=store) as target:
        store.handle = target.fleet.verifier(only.address)
        await answer(target, session_id="s", max_tokens=9)
    assert set(store.counts[:-1]) == {1}, "the last is of a text that is over"
