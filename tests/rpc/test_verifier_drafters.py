"""The verifier with drafters that are lost, late, wrong or of another kind: no text changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from paceline.v1 import drafter_pb2, worker_pb2

from common.model.runner import Runner
from tests import tiny_models
from tests.certificates import Authority
from tests.inprocess import Pair, runner
from tests.rpc.services import (
    ScriptedDrafter,
    Way,
    ask,
    braked,
    drafting,
    verifying,
)
from tests.rpc.verifier_texts import (
    SAMPLING,
    TOKENS,
    all_ways,
    check_counts,
    linked,
    paired,
    slowly,
    status_of,
)
from tests.tiny_models import VOCAB
from tests.waiting import until
from verifier import draft_stream
from verifier.draft_stream import GrpcDraftLink
from verifier.drafting import clock
from verifier.drafting.session import MOST_UNTOLD
from verifier.links import DrafterLinks

pytestmark = pytest.mark.usefixtures("nothing_left")


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
    monkeypatch: pytest.MonkeyPatch,
    target: Runner,
    prompts: list[list[int]],
    plain: list[list[int]],
) -> None:
    monkeypatch.setattr(clock, "_HANGS_PAUSES", 100)  # where passes are slow, its stream would end
    async with ScriptedDrafter().serving() as drafter, verifying(target) as verifier:
        await linked(verifier, drafter.address)
        with braked(target) as brake:  # the text might be over before its mirror is ready
            call = asyncio.create_task(verifier.generate(ask(prompts[1], TOKENS, drafter.address)))
            await until(lambda: any(request.opens for request in drafter.requests))
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
        await linked(verifier, drafter.address)
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


async def test_a_drafter_that_drops_every_session(
    target: Runner, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    def drop(request: drafter_pb2.DraftRequest) -> Iterable[drafter_pb2.DraftResponse]:
        for item in request.opens:
            dropped = drafter_pb2.Dropped(session=item.session, incarnation=item.incarnation)
            yield drafter_pb2.DraftResponse(drops=[dropped])

    async with ScriptedDrafter(drop).serving() as drafter, verifying(target) as verifier:
        await linked(verifier, drafter.address)
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
        await until(lambda: not links.reports())
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
        assert not verifier.proposer.links(drafter.address).up
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
