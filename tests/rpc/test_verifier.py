"""The verifier over the wire, with real drafters and with drafters that fail it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.v1 import drafter_pb2, types_pb2, verifier_pb2, worker_pb2

from common.model.runner import Runner
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.certificates import Authority
from tests.inprocess import Pair, runner
from tests.rpc.services import (
    DRAFT_TOKENS,
    Brake,
    RunningDrafter,
    RunningVerifier,
    ScriptedDrafter,
    Text,
    Way,
    ask,
    braked,
    drafting,
    ending,
    refusal,
    verifying,
)
from tests.tiny_models import MAX_LEN, VOCAB
from tests.waiting import until
from verifier import draft_stream
from verifier.config import EngineConfig
from verifier.draft_stream import GrpcDraftLink
from verifier.drafting import clock
from verifier.drafting.session import MOST_UNTOLD
from verifier.links import DrafterLinks

TOKENS = 120
SAMPLING = SamplingParams(temperature=0.8, seed=7)
CODE = grpc.StatusCode


@pytest.fixture(autouse=True)
def _nothing_left(target: Runner, twin: Runner, stranger: Runner) -> Iterator[None]:
    yield
    for one in (target, twin, stranger):
        one.pool.blocks.check()
        assert one.pool.blocks.held == 0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifiers wait for honest drafters, however busy the machine is."""
    monkeypatch.setattr(clock, "_LEAST_PATIENCE_S", 10.0)
    monkeypatch.setattr(clock, "_MOST_PATIENCE_S", 10.0)


all_ways = pytest.mark.parametrize("way", ["grpc", "near", "far"])


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(3, VOCAB) for _ in range(length)] for length in (1, 20, 70, 33, 48, 5)]


@pytest.fixture(scope="module")
def plain(target: Runner, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt's text as the engine gives it without wire and without drafter."""
    pair = Pair.make(target)
    return [pair.generate(prompt, TOKENS, sampling=SAMPLING) for prompt in prompts]


async def paired(verifier: RunningVerifier, prompt: Sequence[int], *drafters: str) -> None:
    """Generates until the drafter helps: the first request only causes the connection."""
    async with asyncio.timeout(10):
        while True:
            text = await verifier.generate(ask(prompt, 30, *drafters))
            if text.speculation.drafted_tokens:
                return
            await asyncio.sleep(0.02)


def all_warm(drafter: RunningDrafter) -> bool:
    """Whether a drafter has caught up with all that it mirrors."""
    return all(mirror.warm for _, mirror in drafter.engine._mirrors.items())


def check_counts(text: Text, prompt: Sequence[int]) -> None:
    """What a text's usage and statistics must have in common."""
    assert text.complete is not None
    usage, stats = text.complete.usage, text.speculation
    assert usage.prompt_tokens == len(prompt)
    assert usage.completion_tokens == len(text.ids)
    assert usage.cached_tokens < len(prompt)
    assert text.totals is not None
    assert text.totals.rounds == stats.rounds
    assert text.totals.drafted_tokens == stats.drafted_tokens
    assert text.totals.cached_tokens == usage.cached_tokens
    assert text.totals.method == stats.method
    accepted = text.sources.count(types_pb2.TOKEN_SOURCE_ACCEPTED)
    assert stats.accepted_tokens == accepted == sum(stats.accepted_per_position)
    assert stats.accepted_tokens <= stats.drafted_tokens <= DRAFT_TOKENS * stats.rounds
    assert stats.rounds <= len(text.ids) <= stats.rounds + accepted
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position, reverse=True)
    assert stats.acceptance == types_pb2.ACCEPTANCE_COUPLED
    assert not stats.lossy


@pytest.mark.parametrize("fanout", [0, EngineConfig.draft_fanout], ids=["lockstep", "ahead"])
async def test_ids_over_the_wire_are_those_of_the_engine(
    patient: None,
    target: Runner,
    twin: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
    fanout: int,
) -> None:
    config = EngineConfig(draft_fanout=fanout)
    async with verifying(target, config) as verifier, drafting(twin) as drafter:
        await paired(verifier, prompts[0], drafter.address)
        alone = await asyncio.gather(*(verifier.generate(ask(p, TOKENS)) for p in prompts))
        with braked(target) as brake:
            texts = [
                asyncio.ensure_future(verifier.generate(ask(p, TOKENS, drafter.address)))
                for p in prompts
            ]
            while drafter.engine.live < len(prompts):
                brake.let(1)
                await asyncio.sleep(0.02)
            await until(lambda: all_warm(drafter))  # however slow the machine
            brake.open()
            helped = await asyncio.gather(*texts)
        await verifier.empty()
        await drafter.empty()
        assert fanout or not verifier.proposer.news.stale, "what was waited for is what came"
    assert [text.ids for text in alone] == plain
    assert [text.ids for text in helped] == plain
    for prompt, text in zip(prompts * 2, alone + helped, strict=True):
        check_counts(text, prompt)
        assert text.complete is not None
        assert text.complete.finish_reason == types_pb2.FINISH_REASON_LENGTH
    assert {text.speculation.method for text in alone} == {"plain"}
    assert {text.speculation.rounds for text in alone} == {TOKENS}
    assert {text.speculation.method for text in helped} == {"draft"}
    for text in helped:
        once = text.sources[text.sources.index(types_pb2.TOKEN_SOURCE_ACCEPTED) :]
        accepted = once.count(types_pb2.TOKEN_SOURCE_ACCEPTED)
        assert accepted > len(once) / 2, "once its mirror is warm, a twin drafts well"


async def test_stop_tokens_and_the_end_of_sequence(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        stop = plain[1][9]
        stopped = await verifier.generate(ask(prompts[1], TOKENS, stop_token_ids=[stop]))
        biased = types_pb2.SamplingParams(logit_bias={2: 1000.0})
        ended = ask(prompts[1], 5, sampling=biased)
        ended.ignore_eos = False
        text = await verifier.generate(ended)
        await verifier.empty()
    assert stopped.ids == plain[1][: plain[1].index(stop) + 1]
    assert text.ids == [2]
    for one in (stopped, text):
        assert one.complete is not None
        assert one.complete.finish_reason == types_pb2.FINISH_REASON_STOP


async def test_a_cancelled_call_frees_both_tiers(
    target: Runner, twin: Runner, prompts: list[list[int]]
) -> None:
    async with verifying(target) as verifier, drafting(twin) as drafter:
        await paired(verifier, prompts[0], drafter.address)
        with braked(target) as brake:
            call = verifier.stub.Generate(ask(prompts[2], 400, drafter.address))
            brake.let(12)
            while not (await call.read()).tokens.ids:
                pass
            await until(lambda: drafter.engine.live == 1)
            call.cancel()
            await until(lambda: not verifier.engine.live)
            brake.open()
            await verifier.empty()
            await drafter.empty()


async def test_a_deadline_frees_the_sequence(target: Runner, prompts: list[list[int]]) -> None:
    async with verifying(target) as verifier:
        with braked(target) as brake:
            error = await refusal(verifier.stub.Generate(ask(prompts[2], 400), timeout=0.3))
            await until(lambda: not verifier.engine.live)
            brake.open()
        assert error.code() is CODE.DEADLINE_EXCEEDED
        await verifier.empty()


class Slowly:
    """A text that comes step by step, each with time for drafters, until it is told to go on."""

    def __init__(self, brake: Brake, call: Any) -> None:
        self.text = Text()
        self._brake, self._call = brake, call

    async def step(self) -> None:
        assert len(self.text.ids) < TOKENS, "nothing came of it"
        self._brake.let(1)
        self.text.take(await self._call.read())
        await asyncio.sleep(0.02)

    async def helped(self) -> None:
        """Goes on until one more draft has been right."""
        before = self.text.sources.count(types_pb2.TOKEN_SOURCE_ACCEPTED)
        while self.text.sources.count(types_pb2.TOKEN_SOURCE_ACCEPTED) == before:
            await self.step()

    async def rest(self) -> Text:
        self._brake.open()
        await self.text.rest(self._call)
        return self.text


@contextmanager
def slowly(
    verifier: RunningVerifier, request: verifier_pb2.VerifierGenerateRequest
) -> Iterator[Slowly]:
    with braked(verifier.runner) as brake:
        yield Slowly(brake, verifier.stub.Generate(request, timeout=30))


@all_ways
async def test_a_drafter_lost_half_way_and_back_again(
    patient: None,
    target: Runner,
    twin: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
    way: Way,
) -> None:
    async with verifying(target) as verifier, drafting(twin, way=way) as drafter:
        await paired(verifier, prompts[0], drafter.address)
        with slowly(verifier, ask(prompts[3], TOKENS, drafter.address)) as running:
            await running.helped()
            await drafter.stop()
            text = await running.rest()
        assert text.ids == plain[3]
        assert 0 < text.speculation.accepted_tokens < TOKENS * 0.8, "helped, but not to the end"
        await verifier.empty()
        await drafter.start()
        await paired(verifier, prompts[0], drafter.address)
        with slowly(verifier, ask(prompts[4], TOKENS, drafter.address)) as running:
            await running.helped()
            again = await running.rest()
        assert again.ids == plain[4]
        assert again.speculation.rounds < TOKENS / 2
        await verifier.empty()
        await drafter.empty()


@all_ways
async def test_a_running_request_pairs_with_a_drafter_that_comes_back(
    target: Runner,
    twin: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
    way: Way,
) -> None:
    async with verifying(target) as verifier, drafting(twin, way=way) as drafter:
        await paired(verifier, prompts[0], drafter.address)
        await drafter.stop()
        with slowly(verifier, ask(prompts[3], TOKENS, drafter.address)) as running:
            await drafter.start()
            await running.helped()
            text = await running.rest()
        assert text.ids == plain[3]
        await drafter.empty()


@pytest.mark.parametrize("lost", ["nothing", "way", "trust"])
async def test_a_lane_from_elsewhere_is_as_private_as_its_stream(
    lost: str,
    patient: None,
    target: Runner,
    twin: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within mutual TLS; and where it cannot be had, gRPC does as well."""
    ours = Authority("ours")
    tls = ours.issue(tmp_path / "drafter")
    async with (
        verifying(target, tls=ours.issue(tmp_path / "verifier")) as verifier,
        drafting(twin, way="far", tls=tls) as drafter,
    ):
        assert drafter.lane_port is not None
        if lost == "way":
            drafter.lane_port.number = 1  # where nobody listens
        elif lost == "trust":
            files = Authority("theirs").issue(tmp_path / "theirs")
            monkeypatch.setattr(drafter.lane_port, "_tls", files)
        await paired(verifier, prompts[0], drafter.address)
        assert not verifier.proposer.links(drafter.address).near
        (pair,) = (await status_of(verifier)).pairs
        assert pair.lane == (worker_pb2.LANE_FAR if lost == "nothing" else worker_pb2.LANE_NONE)
        with slowly(verifier, ask(prompts[1], TOKENS, drafter.address)) as running:
            await running.helped()
            text = await running.rest()
        assert text.ids == plain[1]
        assert text.speculation.rounds < TOKENS / 2
        await drafter.empty()


async def test_the_second_drafter_serves_where_the_first_is_dead(
    patient: None, target: Runner, twin: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with verifying(target) as verifier, drafting(twin) as dead, drafting(twin) as alive:
        await dead.stop()
        addresses = (dead.address, alive.address)
        await paired(verifier, prompts[0], *addresses)
        with slowly(verifier, ask(prompts[1], TOKENS, *addresses)) as running:
            await running.helped()
            text = await running.rest()
        assert text.ids == plain[1]
        assert text.speculation.rounds < TOKENS / 2
        await alive.empty()


@all_ways
async def test_the_second_drafter_takes_over_half_way(
    patient: None,
    target: Runner,
    twin: Runner,
    stranger: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
    way: Way,
) -> None:
    async with (
        verifying(target) as verifier,
        drafting(stranger, way=way) as first,
        drafting(twin, way=way) as second,
    ):
        await paired(verifier, prompts[0], first.address)
        await paired(verifier, prompts[0], second.address)
        request = ask(prompts[5], TOKENS, first.address, second.address)
        with slowly(verifier, request) as running:
            await running.helped()
            await first.stop()
            while not second.engine.live:
                await running.step()
            await running.helped()
            text = await running.rest()
        assert text.ids == plain[5]
        assert text.speculation.rounds < TOKENS / 2, "the second one is a twin"
        await second.empty()


async def test_a_drafter_that_hangs_costs_a_few_waits(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with ScriptedDrafter().serving() as drafter, verifying(target) as verifier:
        await verifier.generate(ask(prompts[0], 30, drafter.address))
        await until(lambda: verifier.proposer.links(drafter.address).alive)
        asks = len(drafter.requests)
        with braked(target) as brake:  # the text might be over before its mirror is ready
            call = asyncio.create_task(verifier.generate(ask(prompts[1], TOKENS, drafter.address)))
            await until(lambda: any(request.opens for request in drafter.requests[asks:]))
            await until(lambda: verifier.engine.backlog > 0)  # that it is ready now
            brake.open()
            text = await call
        assert text.ids == plain[1]
        assert text.speculation.drafted_tokens == 0
        asked = [commit for commit in drafter.commits if commit.draft_tokens]
        assert 2 <= len(asked) <= 8, "a second of silence, then ever longer pauses"

        def lacking() -> int:
            last = drafter.commits[-1]
            return len(prompts[1]) + TOKENS - (last.base + len(last.ids))

        await until(lambda: lacking() < MOST_UNTOLD)  # what is told may be on its way
        assert lacking() >= 0
        await verifier.empty()


def garbage(request: drafter_pb2.DraftRequest) -> Iterable[drafter_pb2.DraftResponse]:
    """Everything a drafter can get wrong, for each round."""
    for commit in request.commits:
        ids, bonus = [5] * max(commit.draft_tokens, 1), commit.ids[-1]
        key = {
            "session": commit.session,
            "incarnation": commit.incarnation,
            "base": commit.base,
            "path_hash": commit.path_hash,
        }
        outcome = {"accepted": commit.accepted, "bonus": bonus}
        wrong = [
            ({"path_hash": commit.path_hash ^ 1}, outcome, ids),
            ({"incarnation": commit.incarnation + 1}, outcome, ids),
            ({"session": commit.session + 1000}, outcome, ids),
            ({"base": commit.base + 1}, outcome, ids),
            ({}, {"accepted": commit.accepted + 1, "bonus": bonus}, ids),
            ({}, {"accepted": commit.accepted, "bonus": (bonus + 1) % VOCAB}, ids),
            ({}, outcome | {"offset": 1}, ids),
            ({}, outcome, [VOCAB]),
            ({}, outcome, [2**32 - 1]),
            ({}, outcome, [5] * 2_000),
            ({}, outcome, [6] * 2_000),
            ({}, outcome, []),
        ]
        response = drafter_pb2.DraftResponse()
        for changed, given_outcome, drafted in wrong:
            branches = response.branches.add(**(key | changed))
            branches.branches.add(**given_outcome, ids=drafted)
        response.readies.add(session=commit.session + 7, incarnation=99, length=1 << 31)
        response.drops.add(session=commit.session + 1000, incarnation=1, reason="x")
        response.drops.add(session=commit.session, incarnation=commit.incarnation + 1)
        yield response


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Mirrors, by drafter, of which the verifier has heard that they have caught up."""
    counts: Counter[str] = Counter()
    receive = GrpcDraftLink._receive

    def counting(link: GrpcDraftLink, response: drafter_pb2.DraftResponse) -> None:
        receive(link, response)
        counts[link._address] += len(response.readies)

    monkeypatch.setattr(GrpcDraftLink, "_receive", counting)
    return counts


async def test_garbage_changes_nothing_and_harms_nobody(
    patient: None,
    ready: Counter[str],
    target: Runner,
    twin: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
) -> None:
    async with (
        ScriptedDrafter(garbage).serving() as liar,
        drafting(twin, way="grpc") as honest,  # a lane is read between passes alone
        verifying(target) as verifier,
    ):
        await paired(verifier, prompts[0], honest.address)
        await paired(verifier, prompts[0], liar.address)
        drafters, before = [liar.address, honest.address] * 3, ready[honest.address]
        with braked(target) as brake:
            # A session may be done before its mirror is ready, and nothing is drafted for it: so
            # the texts go on only when all three are.
            running = [
                asyncio.create_task(verifier.generate(ask(prompt, TOKENS, address)))
                for prompt, address in zip(prompts, drafters, strict=True)
            ]
            await until(lambda: verifier.engine.live == len(prompts))
            brake.let(1)  # whoever came during the pass is taken in, and its mirror opened
            await until(lambda: ready[honest.address] == before + 3)
            brake.open()
            texts = await asyncio.gather(*running)
        assert [text.ids for text in texts] == plain
        for prompt, text in zip(prompts, texts, strict=True):
            check_counts(text, prompt)
        assert all(text.speculation.accepted_tokens > 0 for text in texts[1::2])
        status = await status_of(verifier)
        assert status.stale_drafts >= 10 * 3 * 20
        await verifier.empty()
        await honest.empty()


async def test_a_drafter_that_floods_is_read_no_faster_than_the_engine_takes_it(
    monkeypatch: pytest.MonkeyPatch,
    target: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
) -> None:
    monkeypatch.setattr(draft_stream, "_MOST_BACKLOG", 100)
    sent, branches, messages = 0, 50, 20_000

    def flood(request: drafter_pb2.DraftRequest) -> Iterable[drafter_pb2.DraftResponse]:
        nonlocal sent
        for item in request.opens:
            response = drafter_pb2.DraftResponse()
            found = response.branches.add(session=item.session + 1000)
            for _ in range(branches):
                found.branches.add(ids=[5] * 100)
            for _ in range(messages):
                sent += 1
                yield response

    async with ScriptedDrafter(flood).serving() as drafter, verifying(target) as verifier:
        proposer = verifier.proposer
        proposer.links(drafter.address)
        await until(lambda: proposer.links(drafter.address).alive)
        with braked(target) as brake:
            call = asyncio.create_task(verifier.generate(ask(prompts[1], 20, drafter.address)))
            await until(lambda: verifier.engine.backlog > 100)
            seen = -1
            while seen != sent:  # until the way is full
                seen = sent
                await asyncio.sleep(0.1)
            assert verifier.engine.backlog <= 100 + 2 * branches
            assert sent < messages
            brake.open()
            assert (await call).ids == plain[1][:20]
        await verifier.empty()


async def status_of(verifier: RunningVerifier) -> worker_pb2.WatchStatusResponse:
    call = verifier.worker.WatchStatus(worker_pb2.WatchStatusRequest())
    status: worker_pb2.WatchStatusResponse = await call.read()
    call.cancel()
    return status


async def test_a_drafter_that_drops_every_session(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    def drop(request: drafter_pb2.DraftRequest) -> Iterable[drafter_pb2.DraftResponse]:
        for item in request.opens:
            dropped = drafter_pb2.Dropped(session=item.session, incarnation=item.incarnation)
            yield drafter_pb2.DraftResponse(drops=[dropped])

    async with ScriptedDrafter(drop).serving() as drafter, verifying(target) as verifier:
        await verifier.generate(ask(prompts[0], 30, drafter.address))
        await until(lambda: verifier.proposer.links(drafter.address).alive)
        text = await verifier.generate(ask(prompts[1], TOKENS, drafter.address))
        assert text.ids == plain[1]
        opened = [item.session for request in drafter.requests for item in request.opens]
        assert len(opened) == len(set(opened)), "who gave a session up is not asked again"
        await verifier.empty()


async def test_unused_drafters_are_let_go(
    target: Runner, twin: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with (
        drafting(twin, max_streams=1) as drafter,
        verifying(target, idle_s=0.3) as first,
        verifying(target) as second,
    ):
        await paired(first, prompts[0], drafter.address)
        await first.generate(ask(prompts[0], 4, "127.0.0.1:1"))
        links = first.proposer.links
        assert isinstance(links, DrafterLinks)
        await until(lambda: links.count == 0)
        await paired(second, prompts[0], drafter.address)  # there is room for its stream
        text = await first.generate(ask(prompts[1], TOKENS, drafter.address))
        assert text.ids == plain[1]
        await first.empty()
        await second.empty()
        await drafter.empty()


async def test_another_tokenizer_with_as_many_ids_is_refused(
    target: Runner, twin: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with (
        verifying(target, fingerprint="a" * 64) as verifier,
        drafting(twin, fingerprint="b" * 64) as drafter,
    ):
        for index in (1, 2):
            text = await verifier.generate(ask(prompts[index], TOKENS, drafter.address))
            assert text.ids == plain[index]
            assert text.speculation.drafted_tokens == 0
            await asyncio.sleep(0.1)
        assert not verifier.proposer.links(drafter.address).alive
        assert drafter.engine.load().steps == 0


@pytest.mark.parametrize("vocab_size", [VOCAB - 1, VOCAB + 50])
async def test_behind_one_tokenizer_a_vocabulary_may_be_padded_otherwise(
    patient: None,
    target: Runner,
    tiny_directory: Path,
    tmp_path: Path,
    prompts: list[list[int]],
    plain: list[list[int]],
    vocab_size: int,
) -> None:
    """The text is the same, drafts are right, and none has ids that the target does not know."""
    resized = runner(tiny_models.resized(tiny_directory, tmp_path, vocab_size), "bfloat16")
    async with (
        verifying(target, fingerprint="a" * 64) as verifier,
        drafting(resized, fingerprint="a" * 64) as drafter,
    ):
        await paired(verifier, prompts[0], drafter.address)
        accepted = 0
        async with asyncio.timeout(60):
            while not accepted:
                text = await verifier.generate(ask(prompts[3], TOKENS, drafter.address))
                assert text.ids == plain[3]
                accepted = text.speculation.accepted_tokens
        await verifier.empty()
        await drafter.empty()


async def test_a_text_with_ids_that_a_drafter_lacks_goes_on_without_it(
    target: Runner, tiny_directory: Path, tmp_path: Path, prompts: list[list[int]]
) -> None:
    smaller = runner(tiny_models.resized(tiny_directory, tmp_path, VOCAB - 1), "bfloat16")
    prompt = [*prompts[1], VOCAB - 1]
    async with (
        verifying(target, fingerprint="a" * 64) as verifier,
        drafting(smaller, fingerprint="a" * 64) as drafter,
    ):
        await paired(verifier, prompts[0], drafter.address)
        text = await verifier.generate(ask(prompt, TOKENS, drafter.address))
        await drafter.empty()
    assert text.ids == Pair.make(target).generate(prompt, TOKENS, sampling=SAMPLING)
    assert text.speculation.drafted_tokens == 0


async def test_overload_is_refused_at_once(target: Runner, prompts: list[list[int]]) -> None:
    config = EngineConfig(max_running=2, max_waiting=1)
    async with verifying(target, config) as verifier:
        with braked(target) as brake:
            running = [asyncio.create_task(verifier.generate(ask(p, 8))) for p in prompts[:3]]
            await until(lambda: verifier.engine.live == 3)
            error = await refusal(verifier.stub.Generate(ask(prompts[3], 8), timeout=5))
            assert error.code() is CODE.RESOURCE_EXHAUSTED
            assert "retry later" in error.details()
            brake.open()
            assert [len(text.ids) for text in await asyncio.gather(*running)] == [8, 8, 8]
        await verifier.generate(ask(prompts[3], 8))
        await verifier.empty()


SPECULATION = types_pb2.SpeculationOptions


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (ask([], 4), CODE.INVALID_ARGUMENT, "prompt_ids: is empty"),
        (ask([VOCAB], 4), CODE.INVALID_ARGUMENT, f"prompt_ids: ids must be below {VOCAB}"),
        (ask([5], 0), CODE.INVALID_ARGUMENT, "max_tokens: must be at least 1"),
        (ask([5], MAX_LEN), CODE.INVALID_ARGUMENT, f"max_tokens: .*at most {MAX_LEN}"),
        (
            ask([5], 4, speculation=SPECULATION(draft_tokens=99)),
            CODE.INVALID_ARGUMENT,
            "speculation.draft_tokens: must be 0 to 16, got 99",
        ),
        (
            ask([5], 4, speculation=SPECULATION(lookahead={"ngram": 9})),
            CODE.INVALID_ARGUMENT,
            "speculation.lookahead.ngram: must be 0, or 2 to 8, got 9",
        ),
        (
            ask([5], 4, *(f"127.0.0.1:{port}" for port in range(1, 10))),
            CODE.INVALID_ARGUMENT,
            "drafters: at most 8, got 9",
        ),
        (
            ask([5], 4, speculation=SPECULATION(method="medusa")),
            CODE.FAILED_PRECONDITION,
            "speculation.method: this verifier has plain, draft, .*not medusa",
        ),
        (
            ask([5], 4, speculation=SPECULATION(method="draft+plain")),
            CODE.INVALID_ARGUMENT,
            "speculation.method: draft.plain: joins different methods",
        ),
        (
            ask([5], 4, sampling=types_pb2.SamplingParams(top_p=1.5)),
            CODE.INVALID_ARGUMENT,
            r"sampling.top_p: must be in \(0, 1\], got 1.5",
        ),
        (
            ask([5], 4, sampling=types_pb2.SamplingParams(logit_bias={VOCAB: 1.0})),
            CODE.INVALID_ARGUMENT,
            "sampling.logit_bias: token ids must be in",
        ),
    ],
)
async def test_bad_requests_name_the_field(
    request_: verifier_pb2.VerifierGenerateRequest,
    code: grpc.StatusCode,
    words: str,
    target: Runner,
) -> None:
    async with verifying(target) as verifier:
        error = await refusal(verifier.stub.Generate(request_, timeout=10))
        assert error.code() is code
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(error.details())
        assert verifier.engine.live == 0


async def test_who_means_other_numerics_is_sent_elsewhere(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        meant = ask(prompts[1], TOKENS, numerics_fingerprint=target.fingerprint)
        other = ask([VOCAB], 4, session="s", epoch=9, numerics_fingerprint="int8")
        error = await refusal(verifier.stub.Generate(other, timeout=10))
        assert error.code() is CODE.UNAVAILABLE, "though the id is none of this model's"
        assert "other numerics" in error.details()
        assert verifier.engine.load().steps == 0
        assert (await verifier.generate(meant)).ids == plain[1]


async def test_draining_finishes_what_runs_and_refuses_the_rest(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        with braked(target) as brake:
            running = asyncio.create_task(verifier.generate(ask(prompts[1], TOKENS)))
            await until(lambda: verifier.engine.live == 1)
            assert (await status_of(verifier)).accepting
            answer = await verifier.worker.Drain(worker_pb2.DrainRequest(grace_s=7))
            assert answer.remaining == 1
            await verifier.worker.Drain(worker_pb2.DrainRequest())
            assert verifier.drained == [7, None]
            error = await refusal(verifier.stub.Generate(ask(prompts[0], 4), timeout=5))
            assert error.code() is CODE.UNAVAILABLE
            assert "draining" in error.details()
            assert not (await status_of(verifier)).accepting
            brake.open()
            assert (await running).ids == plain[1]


async def test_health_serves_then_does_not(target: Runner) -> None:
    serving = health_pb2.HealthCheckResponse
    async with verifying(target) as verifier:
        stub = health_pb2_grpc.HealthStub(verifier.channel)
        for service in ("", "paceline.v1.Verifier", "paceline.v1.Worker"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert (await stub.Check(request)).status == serving.SERVING
        await verifier.server.health.drain()
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == serving.NOT_SERVING


async def test_status_is_told_at_once_and_at_every_interval(
    target: Runner, prompts: list[list[int]]
) -> None:
    async with verifying(target) as verifier:
        for interval_ms in (1, 49):
            request = worker_pb2.WatchStatusRequest(interval_ms=interval_ms)
            error = await refusal(verifier.worker.WatchStatus(request))
            assert error.code() is CODE.INVALID_ARGUMENT
            assert error.details() == f"interval_ms: must be 0 or at least 50, got {interval_ms}"
        call = verifier.worker.WatchStatus(worker_pb2.WatchStatusRequest(interval_ms=50))
        first = await call.read()
        await verifier.generate(ask(prompts[0], 9))
        await verifier.empty()
        while (last := await call.read()).tokens < 9:
            pass
        call.cancel()
    blocks = target.pool.blocks.count
    assert (first.kv_blocks_total, first.kv_blocks_free) == (blocks, blocks)
    assert (first.steps, first.tokens) == (0, 0)
    assert (last.steps, last.tokens, last.running, last.waiting) == (9, 9, 0, 0)
    assert last.step_ms > 0
    assert last.kv_blocks_free == blocks


numbers = st.one_of(
    st.sampled_from([0, 0.0, 1.0, -1.0, 1e-300, 1e300, float("nan"), float("inf")]),
    st.floats(0, 2),
)
ids = st.one_of(st.integers(0, VOCAB - 1), st.sampled_from([VOCAB, 2**31, 2**32 - 1]))
samplings = st.builds(
    types_pb2.SamplingParams,
    temperature=numbers,
    top_k=st.sampled_from([0, 1, 5, VOCAB, 2**32 - 1]),
    top_p=st.none() | numbers,
    min_p=numbers,
    repetition_penalty=st.none() | numbers,
    logit_bias=st.dictionaries(ids, numbers, max_size=3),
    seed=st.none() | st.integers(0, 2**64 - 1),
)
sensible_samplings = st.builds(
    types_pb2.SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 1e-30, 0.7, 1e300]),
    top_k=st.sampled_from([0, 1, 2**32 - 1]),
    top_p=st.sampled_from([None, 1e-300, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 1e-300, 1.0]),
    repetition_penalty=st.sampled_from([None, 1e-300, 1.3, 1e300]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-1e300, 0.5, 1e300])),
)
requests = st.builds(
    verifier_pb2.VerifierGenerateRequest,
    request_id=st.text(max_size=5),
    prompt_ids=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
    | st.lists(ids, max_size=4),
    max_tokens=st.sampled_from([1, 2, 6]) | st.sampled_from([0, MAX_LEN, 2**32 - 1]),
    sampling=st.none() | sensible_samplings | samplings,
    speculation=st.none()
    | st.builds(
        types_pb2.SpeculationOptions,
        method=st.sampled_from(["", "auto", "plain", "draft", "lookahead", "eagle", "\0"]),
        draft_tokens=st.sampled_from([0, 1, 16, 17, 2**32 - 1]),
        lookahead=st.none()
        | st.builds(
            types_pb2.LookaheadOptions,
            window=st.sampled_from([0, 1, 64, 65]),
            ngram=st.sampled_from([0, 2, 8, 9]),
            guesses=st.sampled_from([0, 1, 64, 2**32 - 1]),
        ),
        acceptance=st.sampled_from([0, 1, 2, 3, 77]),
    ),
    stop_token_ids=st.lists(ids, max_size=3),
    ignore_eos=st.booleans(),
    drafters=st.lists(
        st.builds(
            verifier_pb2.DrafterEndpoint,
            address=st.sampled_from(["", ":", "127.0.0.1:1", "no such host", "\0", "dns:///"]),
        ),
        max_size=2,
    ),
)


@settings(max_examples=60)
@given(messages=st.lists(requests, min_size=1, max_size=4))
async def test_no_request_brings_the_verifier_down(
    messages: list[verifier_pb2.VerifierGenerateRequest],
    target: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
) -> None:
    allowed = {CODE.INVALID_ARGUMENT, CODE.FAILED_PRECONDITION, CODE.RESOURCE_EXHAUSTED}
    async with verifying(target) as verifier:
        calls = [verifier.stub.Generate(message, timeout=30) for message in messages]
        codes = await asyncio.gather(*map(ending, calls))
        assert set(codes) <= allowed | {CODE.OK}
        text = await verifier.generate(ask(prompts[1], 10))
        assert text.ids == plain[1][:10]
        await verifier.empty()
