"""A verifier is lost and the text goes on: same ids, same text, counts that add up."""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from paceline.v1 import inference_pb2, types_pb2, worker_pb2

from common.errors import (
    FailedPrecondition,
    InvalidArgument,
    PacelineError,
    ResourceExhausted,
    Unavailable,
)
from common.store.sessions import MemorySessions, SessionRecord
from common.tokenizer import Tokenizer
from gateway import breaker, workers
from gateway.candidate import Candidate, Description
from gateway.config import FailoverConfig
from tests.rpc.answers import PROMPT, SEED, SICK, answer, check_counts, failed
from tests.rpc.gateways import Answer, gateway, ids_of
from tests.rpc.texts import EOS, KeyedVerifier, text
from tests.scripted_workers import serving
from tests.waiting import until


@pytest.mark.parametrize("after", [0, 1, 17, 39, 40])
async def test_another_verifier_goes_on_with_the_same_text(after: int) -> None:
    first, second = KeyedVerifier(), KeyedVerifier()
    for each in (first, second):
        each.fails_after, each.failure = after, None
    first.cached, second.cached = 2, 4
    first.ran = second.ran = "medusa"
    async with serving(first, second), gateway(first.address, second.address) as target:
        call = asyncio.create_task(answer(target))
        await until(lambda: first.failing.is_set() or second.failing.is_set())
        lost, heir = (first, second) if first.failing.is_set() else (second, first)
        heir.fails_after = None
        await lost.stop()
        found = await call
    assert found.ids == text(SEED, PROMPT, 40)
    check_counts(found)
    assert found.complete.speculation.method == "medusa", "what ran, not what was asked for"
    assert found.complete.finish_reason == types_pb2.FINISH_REASON_LENGTH
    streamed = len(heir.requests[0].prompt_ids) - len(PROMPT) if heir.requests else 40
    assert streamed >= after
    if streamed < 40:
        (request,) = heir.requests
        assert list(request.prompt_ids) == PROMPT + text(SEED, PROMPT, streamed)
        assert request.max_tokens == 40 - streamed
        assert request.sampling == lost.requests[0].sampling
    assert found.complete.usage.cached_tokens == (lost.cached if streamed else heir.cached)


@pytest.mark.parametrize("seed", range(6))
async def test_however_often_it_moves(seed: int) -> None:
    chance = random.Random(seed)
    fails = [chance.randint(0, 12) for _ in range(chance.randint(1, 4))]
    tokens = chance.randint(1, 40)
    fleet = [KeyedVerifier() for _ in range(len(fails) + 1)]
    for each, after in zip(fleet, fails, strict=False):
        each.fails_after = after
    async with serving(*fleet), gateway(*(each.address for each in fleet)) as target:
        found = await answer(target, max_tokens=tokens)
    assert found.ids == text(SEED, PROMPT, tokens)
    check_counts(found)


async def test_a_process_that_is_gone_is_noticed_on_the_way() -> None:
    first, second = KeyedVerifier(), KeyedVerifier()
    for each in (first, second):
        each.fails_after, each.failure = 20, None
    async with serving(first, second), gateway(first.address, second.address) as target:
        running = [asyncio.create_task(answer(target)) for _ in range(8)]
        await until(lambda: len(first.requests) + len(second.requests) == 8)
        await until(lambda: first.failing.is_set() or second.failing.is_set())
        lost, heir = (first, second) if first.failing.is_set() else (second, first)
        heir.fails_after = None
        heir.resumed.set()
        await lost.stop()
        found = await asyncio.gather(*running)
    assert [each.ids for each in found] == [text(SEED, PROMPT, 40)] * 8
    for each in found:
        check_counts(each)


async def test_stop_strings_and_characters_hold_across_the_move(demo_target: Path) -> None:
    tokenizer = Tokenizer.load(demo_target)
    assert tokenizer is not None
    whole = "Grüße 😀 from here\nSTOP never"
    ids = tokenizer.encode(whole)
    recovered = types_pb2.TOKEN_SOURCE_RECOVERED

    async def cut_at(cut: int) -> Answer:
        first = KeyedVerifier(tokenizer_fingerprint=tokenizer.fingerprint)
        second = KeyedVerifier(tokenizer_fingerprint=tokenizer.fingerprint)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serving(first, second))
            target = await stack.enter_async_context(
                gateway(first.address, second.address, tokenizer=tokenizer)
            )
            cuts = [cut]
            for each in (first, second):
                _script(each, ids, recovered, len(tokenizer.encode("go")), cuts)
            return await target.generate(text="go", stop=["STOP"], max_tokens=len(ids))

    for cut in range(0, len(ids), 2):
        found = await cut_at(cut)
        assert found.text == whole[: whole.index("STOP")]
        assert found.complete.stop == "STOP"
        assert found.complete.usage.completion_tokens == len(found.ids)


def _script(
    worker: KeyedVerifier, ids: list[int], source: int, prompt: int, cuts: list[int]
) -> None:
    """Has a verifier write `ids`, and whoever comes to a cut first fail there."""

    def round_(request: object, position: int, room: int) -> tuple[list[int], list[int]]:
        if position - prompt in cuts:
            cuts.clear()
            raise Unavailable("cut")
        return [ids[position - prompt]], [source]

    worker._round = round_  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("ignore_eos", [False, True])
async def test_an_end_token_whose_report_is_lost_still_ends_the_text(ignore_eos: bool) -> None:
    only = KeyedVerifier()
    only.ends_at = len(PROMPT) + 9
    only.fails_after = 10
    async with serving(only), gateway(only.address) as target:
        found = await answer(target, ignore_eos=ignore_eos)
    ids = text(SEED, PROMPT, 40)
    ids[9] = EOS
    assert found.ids == (ids if ignore_eos else ids[:10])
    reason = types_pb2.FINISH_REASON_LENGTH if ignore_eos else types_pb2.FINISH_REASON_STOP
    assert found.complete.finish_reason == reason
    check_counts(found)


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ({"numerics_fingerprint": "a"}, {"numerics_fingerprint": "b"}),
        # Though its numerics, which it does not tell, might be the same.
        ({}, {"tokenizer_fingerprint": "other"}),
    ],
    ids=["numerics", "tokens"],
)
async def test_who_computes_or_reads_otherwise_never_goes_on(
    own: dict[str, str], others: dict[str, str]
) -> None:
    first, second = KeyedVerifier(**own), KeyedVerifier(**others)
    for each in (first, second):
        each.fails_after = 5
    async with serving(first, second), gateway(first.address, second.address) as target:
        found = await answer(target)
    assert found.ids == text(SEED, PROMPT, 40)
    assert sorted(len(each.requests) for each in (first, second))[0] == 0


class ReplacingStore(MemorySessions):
    """Has a verifier of other numerics answer at an address while a session is claimed for it."""

    def __init__(self, placed: KeyedVerifier) -> None:
        super().__init__(60)
        self._placed = placed

    async def save(self, key: str, epoch: int, record: SessionRecord) -> bool | None:
        if record.owner == self._placed.address:
            self._placed.description.numerics_fingerprint = "int8"
        return await super().save(key, epoch, record)


async def test_who_took_the_place_of_the_chosen_one_writes_nothing_by_other_numerics() -> None:
    placed, heir = (KeyedVerifier(numerics_fingerprint="bf16") for _ in range(2))
    heir.status.running = 5  # the other one looks idle, and is preferred
    store = ReplacingStore(placed)
    async with (
        serving(placed, heir),
        gateway(placed.address, heir.address, store=store) as target,
    ):
        handle = target.fleet.verifier(heir.address)
        await until(lambda: handle.candidate.load.running == 5)
        found = await answer(target, session_id="s")
    assert found.started.numerics == "bf16"
    assert found.ids == text(SEED, PROMPT, 40)
    assert placed.refused.is_set()
    assert (len(placed.requests), len(heir.requests)) == (0, 1)


async def test_where_none_is_left_it_says_so_in_time() -> None:
    only = KeyedVerifier()
    only.fails_after, only.failure = 5, None
    async with serving(only), gateway(only.address) as target:
        call = asyncio.create_task(failed(target))
        await only.failing.wait()
        await only.stop()
        error = await call
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "no other verifier of demo" in error.details()
    assert "retry later" in error.details()


async def test_it_waits_for_one_to_come_back() -> None:
    only = KeyedVerifier()
    only.fails_after, only.failure = 5, None
    waits = FailoverConfig(wait_s=20)
    async with serving(only), gateway(only.address, failover=waits) as target:
        call = asyncio.create_task(answer(target))
        await only.failing.wait()
        await only.stop()
        await asyncio.sleep(0.3)
        only.fails_after = None
        await only.start(int(only.address.rpartition(":")[2]))
        found = await call
    assert found.ids == text(SEED, PROMPT, 40)


async def test_a_silent_verifier_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SILENCE_S", 0.5)
    first, second = KeyedVerifier(), KeyedVerifier()
    for each in (first, second):
        each.fails_after, each.failure = 7, None  # hangs there
    async with serving(first, second), gateway(first.address, second.address) as target:
        call = asyncio.create_task(answer(target))
        await until(lambda: first.failing.is_set() or second.failing.is_set())
        hung, heir = (first, second) if first.failing.is_set() else (second, first)
        heir.fails_after = None
        hung.mute.set()
        found = await call
    assert found.ids == text(SEED, PROMPT, 40)
    assert len(heir.requests) == 1


async def test_a_silent_verifier_is_late_before_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "_LATE_S", 0.2)
    one = KeyedVerifier()
    async with serving(one), gateway(one.address) as target:

        def seen() -> Candidate:
            [verifier], _ = target.fleet.candidates()
            return verifier

        await until(lambda: not seen().late)
        one.mute.set()
        await until(lambda: seen().late)
        assert seen().available


async def test_a_defect_in_following_a_worker_is_told_once_and_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    describe, answers = workers._description, []

    def broken(answer: worker_pb2.DescribeResponse) -> Description:
        answers.append(answer)
        if len(answers) < 3:
            raise AttributeError("a defect")
        return describe(answer)

    monkeypatch.setattr(workers, "_description", broken)
    only = KeyedVerifier()
    async with serving(only), gateway(only.address) as target:
        assert (await answer(target)).ids == text(SEED, PROMPT, 40)
    assert caplog.messages.count("worker cannot be followed") == 1
    reasons = [record.reason for record in caplog.records if "not reachable" in record.message]
    assert reasons == ["AttributeError: a defect"]


@pytest.mark.parametrize(
    "refusal",
    [InvalidArgument("x", "is bad"), FailedPrecondition("no")],
)
async def test_what_would_fail_again_is_not_retried(refusal: PacelineError) -> None:
    first, second = KeyedVerifier(), KeyedVerifier()
    for each in (first, second):
        each.fails_after, each.failure = 5, refusal
    async with serving(first, second), gateway(first.address, second.address) as target:
        error = await failed(target)
    assert error.code().name == refusal.code
    assert len(first.requests) + len(second.requests) == 1


@pytest.mark.parametrize("after", [0, 17])
async def test_what_a_sick_verifier_fails_another_one_finishes(
    after: int, unforgiving: None
) -> None:
    sick, well = KeyedVerifier(), KeyedVerifier()
    sick.fails_after, sick.failure = after, SICK
    well.status.running = 5  # the sick one looks idle, and is preferred
    async with serving(sick, well), gateway(sick.address, well.address) as target:
        handle = target.fleet.verifier(sick.address)
        await until(lambda: target.fleet.verifier(well.address).candidate.load.running == 5)
        for _ in range(6):
            found = await answer(target)
            assert found.ids == text(SEED, PROMPT, 40)
            check_counts(found)
    # Where it writes some tokens first it is not broken: its failures are not in a row.
    assert len(sick.requests) == (3 if after == 0 else 6)
    assert handle.breaker.allows is (after > 0)


@pytest.mark.parametrize("failure", [SICK, ResourceExhausted("no blocks are free")])
@pytest.mark.parametrize("after", [0, 17])
async def test_what_the_only_one_with_a_method_fails_is_finished_without(
    after: int, failure: PacelineError
) -> None:
    able, other = KeyedVerifier(methods=["plain", "eagle"]), KeyedVerifier()
    able.fails_after, able.failure = after, failure
    async with serving(able, other), gateway(able.address, other.address) as target:
        found = await answer(target, speculation=types_pb2.SpeculationOptions(method="eagle"))
    assert found.ids == text(SEED, PROMPT, 40)
    check_counts(found)
    asked = [request.speculation.method for request in able.requests + other.requests]
    assert asked == ["eagle", "plain"]


async def test_a_text_that_goes_on_keeps_no_sick_verifier_in_service(unforgiving: None) -> None:
    sick, well = KeyedVerifier(), KeyedVerifier()
    sick.pace_s = 0.01
    well.status.running = 5  # the sick one looks idle, and is preferred
    round_ = sick._round

    def only_the_first(request: Any, position: int, room: int) -> tuple[list[int], list[int]]:
        if request.request_id != sick.requests[0].request_id:
            raise SICK
        return round_(request, position, room)

    sick._round = only_the_first  # type: ignore[method-assign]
    async with serving(sick, well), gateway(sick.address, well.address) as target:
        await until(lambda: target.fleet.verifier(well.address).candidate.load.running == 5)
        old = target.stub.Generate(
            inference_pb2.GenerateRequest(token_ids=ids_of(1), max_tokens=200, ignore_eos=True)
        )
        for _ in range(6):
            assert (await old.read()).HasField("chunk")  # it speaks between any two failures
            assert (await answer(target)).ids == text(SEED, PROMPT, 40)
        old.cancel()
    assert len(sick.requests) == 1 + 3


async def test_a_process_that_takes_a_broken_ones_place_serves_at_once(unforgiving: None) -> None:
    only = KeyedVerifier()
    only.fails_after, only.failure = 0, SICK
    async with serving(only), gateway(only.address) as target:
        handle = target.fleet.verifier(only.address)
        for _ in range(3):
            assert (await failed(target)).code() is grpc.StatusCode.INTERNAL
        only.fails_after = None
        for incarnation in (1, 2):  # a connection that was lost makes no other process
            await only.stop()
            await until(lambda: not handle.present)
            only.description.incarnation = incarnation
            await only.start(int(only.address.rpartition(":")[2]))
            await until(lambda: handle.present)
            assert handle.breaker.allows is (incarnation == 2)
        assert (await answer(target)).ids == text(SEED, PROMPT, 40)


@pytest.mark.parametrize("failure", [SICK, Unavailable("gone")])
async def test_what_a_former_process_fails_says_nothing_of_its_successor(
    failure: PacelineError, unforgiving: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "_FAILURES", 1)
    only = KeyedVerifier()
    only.fails_after = 5

    async def fail_late() -> None:
        only.failing.set()
        await only.resumed.wait()
        raise failure

    only._fail = fail_late  # type: ignore[method-assign]
    async with serving(only), gateway(only.address) as target:
        handle = target.fleet.verifier(only.address)
        former, call = handle.breaker, asyncio.create_task(answer(target))
        await only.failing.wait()
        only.description.incarnation, only.status.accepting = 2, False
        await until(lambda: handle.breaker is not former)
        only.status.accepting, only.fails_after = True, None
        await until(lambda: handle.present)
        only.resumed.set()
        await asyncio.wait([call])
        assert not former.allows
        assert (await answer(target)).ids == text(SEED, PROMPT, 40)
    assert (call.exception() is None) is (failure is not SICK)


async def test_a_poisonous_request_is_moved_once_and_breaks_nobody() -> None:
    workers = [KeyedVerifier() for _ in range(3)]
    for each in workers:
        each.fails_after, each.failure = 0, SICK
    async with serving(*workers), gateway(*(each.address for each in workers)) as target:
        for _ in range(6):
            assert (await failed(target)).code() is grpc.StatusCode.INTERNAL
        assert sum(len(each.requests) for each in workers) == 6 * 2
        for each in workers:
            assert target.fleet.verifier(each.address).breaker.allows
            each.fails_after = None
        assert (await answer(target)).ids == text(SEED, PROMPT, 40)


async def test_where_there_is_no_other_an_internal_error_is_told_at_once() -> None:
    only = KeyedVerifier()
    only.fails_after, only.failure = 5, SICK
    waits = FailoverConfig(wait_s=60)
    async with serving(only), gateway(only.address, failover=waits) as target:
        assert (await failed(target)).code() is grpc.StatusCode.INTERNAL
    assert len(only.requests) == 1


async def test_a_full_verifier_sends_on_and_full_ones_say_so() -> None:
    first, second = KeyedVerifier(), KeyedVerifier()
    for each in (first, second):
        each.fails_after, each.failure = 0, ResourceExhausted("no blocks are free")
    async with serving(first, second), gateway(first.address, second.address) as target:
        started = time.monotonic()
        error = await failed(target)
        assert time.monotonic() - started < 5
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(first.requests) == len(second.requests) == 1
        second.fails_after = None
        assert (await answer(target)).ids == text(SEED, PROMPT, 40)


class CrowdedVerifier(KeyedVerifier):
    """Puts a text out after 5 tokens, and has no room for any then."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_after, self.failure = 5, ResourceExhausted("all places are taken")

    async def _fail(self) -> None:
        self.fails_after = 0
        await super()._fail()


async def test_what_was_begun_waits_for_room() -> None:
    only = CrowdedVerifier()
    waits = FailoverConfig(attempts=2, retries_burst=1, retries_per_s=0.001, wait_s=20)
    async with serving(only), gateway(only.address, failover=waits) as target:
        call = asyncio.create_task(answer(target))
        await until(lambda: len(only.requests) >= 4)
        only.fails_after = None
        found = await call
    assert found.ids == text(SEED, PROMPT, 40)
    check_counts(found)


async def test_where_no_room_is_made_it_says_so_in_time() -> None:
    only = CrowdedVerifier()
    patient = FailoverConfig(wait_s=2)
    async with serving(only), gateway(only.address, failover=patient) as target:
        error = await failed(target)
    assert len(only.requests) > 1
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "all places are taken; no other verifier of demo" in error.details()


async def test_who_has_no_room_for_the_whole_text_does_not_go_on_with_it() -> None:
    first, long, short = KeyedVerifier(), KeyedVerifier(), KeyedVerifier(max_model_len=20)
    first.fails_after, first.failure = 5, None
    long.status.running = 5  # the others look idle, and are preferred
    async with serving(first, long, short), gateway(first.address, long.address) as target:
        handle = target.fleet.verifier(long.address)
        await until(lambda: handle.candidate.load.running == 5)
        call = asyncio.create_task(answer(target))
        await first.failing.wait()
        target.fleet.update("verifier", [each.address for each in (first, long, short)])
        await until(lambda: target.fleet.verifier(short.address).present)
        await first.stop()
        found = await call
    assert found.ids == text(SEED, PROMPT, 40)
    assert (len(long.requests), len(short.requests)) == (1, 0)


async def test_retries_have_a_budget() -> None:
    first, second = KeyedVerifier(), KeyedVerifier()
    for each in (first, second):
        each.fails_after = 0
    few = FailoverConfig(retries_burst=2, retries_per_s=0.001, wait_s=5)
    async with serving(first, second), gateway(first.address, second.address, failover=few) as t:
        for _ in range(3):
            assert (await failed(t)).code() is grpc.StatusCode.UNAVAILABLE
    assert len(first.requests) + len(second.requests) <= 3 + 2


async def test_a_verifier_that_keeps_failing_is_left_alone(unforgiving: None) -> None:
    bad, good = KeyedVerifier(), KeyedVerifier()
    bad.fails_after = 0
    good.status.running = 5  # the bad one looks idle, and is preferred
    async with serving(bad, good), gateway(bad.address, good.address) as target:
        await until(lambda: target.fleet.verifier(good.address).candidate.load.running == 5)
        for _ in range(6):
            assert (await answer(target)).ids == text(SEED, PROMPT, 40)
    assert len(bad.requests) == 3
    assert len(good.requests) == 6


async def test_lost_drafters_do_not_hold_up_the_move() -> None:
    first, second = KeyedVerifier(), KeyedVerifier()
    drafter = KeyedVerifier(tier="drafter")
    for each in (first, second):
        each.fails_after, each.failure = 20, None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(first, second, drafter))
        target = await stack.enter_async_context(
            gateway(first.address, second.address, drafters=(drafter.address,))
        )
        options = types_pb2.SpeculationOptions(method="draft")
        call = asyncio.create_task(answer(target, speculation=options))
        await until(lambda: first.failing.is_set() or second.failing.is_set())
        lost, heir = (first, second) if first.failing.is_set() else (second, first)
        await drafter.stop()
        await until(lambda: not target.fleet._drafters.listed[drafter.address].present)
        heir.fails_after = None
        await lost.stop()
        found = await call
    assert found.ids == text(SEED, PROMPT, 40)
    assert [list(request.drafters) for request in heir.requests] == [[]]
    assert found.complete.speculation.method == "draft"


async def test_a_client_that_leaves_during_the_pause_leaves_nothing_behind() -> None:
    only = KeyedVerifier()
    only.fails_after, only.failure = 5, None
    waits = FailoverConfig(wait_s=60)
    async with serving(only), gateway(only.address, failover=waits) as target:
        request = inference_pb2.GenerateRequest(token_ids=ids_of(1), max_tokens=9)
        call = target.stub.Generate(request)
        await only.failing.wait()
        await only.stop()
        handle = target.fleet.verifier(only.address)
        await until(lambda: not handle.present)
        call.cancel()
        await until(lambda: target.admission.running == 0)
