"""The engine's housekeeping: cache accounting, admission, cancelling, refusing."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import (
    FailedPrecondition,
    InvalidArgument,
    PacelineError,
    ResourceExhausted,
    Unavailable,
)
from common.lookahead_sizes import LookaheadSizes
from common.model.roll import Drawing
from common.model.runner import Runner
from common.model.segment import Segment
from common.sampling_params import SamplingParams
from tests.inprocess import Collected, Pair
from tests.tiny_models import MAX_LEN, VOCAB
from tests.unit.verifier.texts import SMALL, TIGHT_BYTES, broken, prompt_of
from verifier.config import EngineConfig
from verifier.drafting.session import RemoteMirror
from verifier.engine import Engine
from verifier.sequence import FinishReason, Source

pytestmark = pytest.mark.usefixtures("nothing_left")


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_blocks_add_up_after_any_mix(seed: int, tight: Runner, twin: Runner) -> None:
    """Requests come, end, are cancelled, fail and are preempted, in any order."""
    draw = random.Random(seed)
    pair = Pair.make(tight, draw.choice([None, twin]), EngineConfig(max_batch_tokens=48))
    tickets = []
    for _ in range(40):
        match draw.choice(["submit", "submit", "step", "step", "step", "cancel", "fail"]):
            case "submit":
                method = draw.choice(["plain", "draft"]) if pair.link else "plain"
                prompt = prompt_of(draw.randint(1, 120), draw.randrange(3))
                tickets.append(pair.submit(prompt, draw.randint(1, 60), method=method).ticket)
            case "step":
                pair.engine.step()
            case "cancel" if tickets:
                pair.engine.cancel(draw.choice(tickets))
            case "fail":
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(tight, "forward", broken)
                    pair.engine.step()
        tight.pool.blocks.check()
        held = {
            int(slot) // 16 - 1
            for sequence in pair.engine._scheduler.running
            for slot in sequence.lease.slots
        }
        assert tight.pool.blocks.held == len(held)
        running, totals = pair.engine._scheduler.running, pair.engine.totals
        first = sum(not sequence.counts.rounds for sequence in running)
        assert first <= totals.starting <= totals.sequences  # some may have given way
    pair.run()
    assert (totals.starting, totals.sequences) == (0, 0)


def test_who_waits_for_its_turn_drafts_nothing_and_takes_nothing_of_drafters(
    target: Runner, twin: Runner
) -> None:
    pair = Pair.make(target, twin, EngineConfig(max_running=2))
    heard = [pair.submit(prompt_of(10, seed), 20, draft_tokens=4) for seed in range(6)]
    for _ in range(3):
        pair.engine.step()
    engine, link = pair.engine, pair.link
    assert link is not None
    assert (engine.live, engine.totals.sequences, link.drafter.live) == (6, 2, 2)
    assert engine.methods.draft._pairing.texts() == 2
    pair.engine.cancel(heard[5].ticket)
    pair.run()
    assert engine.totals.sequences == 0
    assert link.drafter.totals.opened == 5, "one was cancelled before its turn"
    assert all(_counts(one).accepted_tokens for one in heard[:5])


def test_drafters_hear_of_a_text_before_its_first_pass(target: Runner, twin: Runner) -> None:
    """So that both prompts are computed at the same time."""
    pair = Pair.make(target, twin)
    forward, told = target.forward, []

    def telling(segments: list[Segment], drawings: Sequence[Drawing], **options: bool) -> object:
        assert pair.link is not None
        told.append(pair.link.drafter.live)
        return forward(segments, drawings, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "forward", telling)
        pair.submit(prompt_of(10), 3)
        pair.engine.step()
    assert told == [1]
    pair.run()


def test_a_hybrid_is_one_method_whichever_way_it_is_asked_for(target: Runner, twin: Runner) -> None:
    pair = Pair.make(target, twin)
    asked = ("ngram+draft", "draft+ngram")
    heard = [pair.submit(prompt_of(5) * 4, 30, method=method) for method in asked]
    pair.run()
    assert heard[0].ids == heard[1].ids
    assert [_counts(one).method for one in heard] == list(asked)
    engine = pair.engine
    known = (engine.methods._asked, engine.totals.drafts, engine._lives._choice._everybody._of)
    assert [list(each) for each in known] == [["draft+ngram"]] * 3


@pytest.mark.parametrize(
    ("tokens", "end", "learned"), [(20, "cancel", 1), (0, "cancel", 0), (20, "fail", 0)]
)
def test_a_text_that_is_left_says_what_its_method_is_worth(
    tokens: int, end: str, learned: int, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that comes to a stop string; until its latest token, whatever it waited for."""
    pair = Pair.make(target)
    engine, known = pair.engine, pair.engine._lives._choice._everybody
    heard = pair.submit(prompt_of(10), 50, method="auto")
    while len(heard.ids) < tokens:
        engine.step()
    for sequence in engine._scheduler.running:
        sequence.latest_at = sequence.began_at + 2.0
    with monkeypatch.context() as patch:
        if end == "cancel":
            engine.cancel(heard.ticket)
        else:
            patch.setattr(target, "forward", broken)
        engine.step()
    assert engine.live == 0
    worth = (len(heard.ids) - 1) / 2.0 * engine._cost.round_s(0)
    assert [each.worth for each in known._of.values() if each.measured] == [worth] * learned


def test_a_text_that_gave_its_cache_back_keeps_nobody_awake(
    target: Runner, twin: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for room, however long ago its draft was due."""
    pair = Pair.make(target, twin, fault=lambda reply: [reply] if reply.round is None else [])
    engine, methods = pair.engine, pair.engine.methods
    pair.submit(prompt_of(10), 50, draft_tokens=4)
    mirrors: list[RemoteMirror] = []
    while not (waiting := [mirror for mirror in mirrors if mirror.waits]):
        engine.step()
        sessions = methods.draft._sessions.values()
        mirrors = [session.mirror for session in sessions if session.mirror]
    now = time.monotonic()
    waiting[0].deadline = now + 0.01
    assert methods.deadline(now) == waiting[0].deadline
    assert methods.deadline(now + 0.02) is None, "it was ready, had there been room"
    scheduler = engine._scheduler
    scheduler._preempt(scheduler.running[0])
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "admit", list)
        waiting[0].deadline = 0.0
        assert not engine.step()
        began = time.monotonic()
        engine.wait(0.05)
        assert time.monotonic() - began >= 0.04
    pair.run()


def test_admission_takes_what_it_promises(tight: Runner) -> None:
    """Six prompts that fit two at a time: nobody is let in to be thrown out again."""
    pair = Pair.make(tight, None, EngineConfig(max_batch_tokens=64))
    rows = 0
    forward = tight.forward

    def counting(segments: list[Segment], drawings: Sequence[Drawing], **options: bool) -> object:
        nonlocal rows
        rows += sum(len(segment.ids) for segment in segments)
        return forward(segments, drawings, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tight, "forward", counting)
        heard = [pair.submit(prompt_of(130, 500 + seed), 10) for seed in range(6)]
        pair.run()
    assert all(len(one.ids) == 10 for one in heard)
    assert rows == 6 * (130 + 9)


def test_a_prompt_without_room_is_not_looked_up_in_every_step(
    tight: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until more is free, or others may have computed what it lacks."""
    pair = Pair.make(tight)
    running = pair.submit(prompt_of(200), 60)
    pair.engine.step()
    match, looks = tight.pool.blocks.match, 0

    def counted(hashes: Sequence[bytes]) -> list[int]:
        nonlocal looks
        looks += 1
        return match(hashes)

    monkeypatch.setattr(tight.pool.blocks, "match", counted)
    waits = pair.submit(prompt_of(200, 1), 5)
    for _ in range(34):
        pair.engine.step()
    assert 2 <= looks <= 3
    while not running.done:
        pair.engine.step()
    before = looks
    pair.engine.step()
    assert looks == before + 1, "at once where there is more"
    pair.run()
    assert len(waits.ids) == 5


def test_drafts_leave_room_for_prefill(target: Runner, twin: Runner) -> None:
    """Long drafts of many sequences under a small budget: a newcomer's prompt still gets on."""
    pair = Pair.make(target, twin, EngineConfig(max_batch_tokens=24, max_running=16))
    for seed in range(12):
        pair.submit(prompt_of(4, seed), 150, draft_tokens=16)
    for _ in range(40):
        pair.engine.step()
    newcomer = pair.submit(prompt_of(60, 99), 1)
    for _ in range(30):
        pair.engine.step()
    assert newcomer.done
    pair.run()


@pytest.mark.parametrize(("processors", "fanout"), [(1, 0), (3, 0), (4, 3)])
def test_nothing_is_drafted_ahead_where_passes_take_most_processors(
    processors: int, fanout: int, target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.processors.count", lambda: processors)
    monkeypatch.setattr(Runner, "threads", 2)
    draft = Engine(target, EngineConfig()).methods.draft
    assert (draft.near_fanout, draft.fanout) == (fanout, 3)


def test_cancelled_requests_say_nothing_more(target: Runner) -> None:
    pair = Pair.make(target)
    heard = pair.submit(prompt_of(10), 20)
    for _ in range(3):
        pair.engine.step()
    events = len(heard.events)
    pair.engine.cancel(heard.ticket)
    pair.engine.cancel(heard.ticket)
    pair.run()
    pair.engine.step()
    assert len(heard.events) == events
    assert target.pool.blocks.held == 0


def test_who_waits_still_counts_for_how_long_is_waited(target: Runner) -> None:
    pair = Pair.make(target, None, EngineConfig(max_running=1))
    first = pair.submit(prompt_of(5), 4)
    pair.engine.step()
    assert pair.engine.load().queue_wait_ms < 3000
    waiting = [pair.submit(prompt_of(5), 4) for _ in range(2)]
    inside = pair.engine._intake._inside
    inside[first.ticket].arrived_at -= 60.0
    inside[waiting[0].ticket].arrived_at -= 3.0
    pair.engine.step()
    assert 3000 <= pair.engine.load().queue_wait_ms < 60_000
    pair.engine.cancel(waiting[0].ticket)
    assert pair.engine.load().queue_wait_ms < 3000
    pair.run()


def test_overload_is_refused_at_once(target: Runner) -> None:
    pair = Pair.make(target, None, SMALL)
    heard = [pair.submit(prompt_of(5), 4) for _ in range(8)]
    with pytest.raises(ResourceExhausted, match="retry later"):
        pair.submit(prompt_of(5), 4)
    pair.run()
    assert all(len(one.ids) == 4 for one in heard)
    pair.generate(prompt_of(5), 4)


def test_draining_finishes_what_is_inside(target: Runner) -> None:
    pair = Pair.make(target)
    heard = pair.submit(prompt_of(5), 8)
    pair.engine.stop_accepting()
    with pytest.raises(Unavailable, match="draining"):
        pair.submit(prompt_of(5), 8)
    pair.run()
    assert len(heard.ids) == 8


def test_the_cache_never_exceeds_its_size(tight: Runner) -> None:
    pool = tight.pool
    assert sum(t.nbytes for t in pool.layers) <= TIGHT_BYTES
    pair = Pair.make(tight)
    heard = [pair.submit(prompt_of(100, seed), 60) for seed in range(6)]
    pair.run()
    assert all(len(one.ids) == 60 for one in heard)


@pytest.mark.parametrize(("length", "tokens", "cached"), [(100, 5, 96), (12, 4, 0)])
def test_a_prefix_is_reused_as_far_as_it_was_computed(
    length: int, tokens: int, cached: int, target: Runner, twin: Runner
) -> None:
    """The last token of a text has no keys and values: a block that it fills is not offered."""
    pair = Pair.make(target)
    prompt = prompt_of(length, seed=77)
    first, second = pair.submit(prompt, tokens), None
    pair.run()
    longer = [*prompt, *first.ids, 9]
    second = pair.submit(longer, 5)
    pair.run()
    assert _counts(first).cached_tokens == 0
    assert _counts(second).cached_tokens == cached
    assert second.ids == Pair.make(twin).generate(longer, 5)


def test_what_a_text_computed_itself_is_not_found_in_the_cache(tight: Runner) -> None:
    """It gave its cache back before its first token, and took it again."""
    config = EngineConfig(max_batch_tokens=4, max_running=2)
    pair = Pair.make(tight, None, config)
    first = pair.submit(prompt_of(150, seed=81), 100)
    while not first.events:
        pair.engine.step()
    second = pair.submit(prompt_of(140, seed=82), 4)
    pair.run()
    assert pair.engine.preemptions == 1
    assert len(second.ids) == 4
    assert _counts(second).cached_tokens == pair.engine.totals.cached_tokens == 0


def test_a_whole_prompt_in_the_cache_still_yields_logits(target: Runner) -> None:
    pair = Pair.make(target)
    prompt = prompt_of(64, seed=78)
    expected = pair.generate(prompt, 5)
    again = pair.submit(prompt, 5)
    pair.run()
    assert again.ids == expected
    assert _counts(again).cached_tokens == 48


def _counts(heard: Collected) -> object:
    counts = heard.events[-1].counts
    assert counts is not None
    return counts


def test_stop_tokens_end_the_text_inside_a_draft(target: Runner, twin: Runner) -> None:
    """The twin drafts perfectly; whatever the place of the stop token, nothing follows it."""
    prompt = prompt_of(12, seed=5)
    text = Pair.make(target).generate(prompt, 24)
    for stop in set(text):
        heard = Pair.make(target, twin)
        one = heard.submit(prompt, 24, stop_ids=frozenset({stop}), draft_tokens=7)
        heard.run()
        assert one.ids == text[: text.index(stop) + 1]
        assert one.events[-1].finish is FinishReason.STOP


@pytest.mark.parametrize("limit", range(1, 12))
def test_max_tokens_is_never_overshot(limit: int, target: Runner, twin: Runner) -> None:
    pair = Pair.make(target, twin)
    heard = pair.submit(prompt_of(12, seed=5), limit, draft_tokens=8)
    pair.run()
    assert len(heard.ids) == limit
    assert heard.events[-1].finish is FinishReason.LENGTH
    counts = heard.events[-1].counts
    assert counts is not None
    assert counts.accepted_tokens == sum(
        source is Source.ACCEPTED for event in heard.events for source in event.sources
    )


def test_a_perfect_drafter_is_accepted_whole(target: Runner, twin: Runner) -> None:
    pair = Pair.make(target, twin, EngineConfig(draft_fanout=0))
    sampling = SamplingParams(temperature=0.8, seed=3)
    heard = pair.submit(prompt_of(12), 41, draft_tokens=4, sampling=sampling)
    pair.run()
    counts = heard.events[-1].counts
    assert counts is not None
    assert counts.accepted_tokens == counts.drafted_tokens
    assert counts.rounds == 9  # the prefill's token, then eight rounds of five
    kinds = [source for event in heard.events for source in event.sources]
    assert kinds == [Source.RECOVERED, *([Source.ACCEPTED] * 4 + [Source.BONUS]) * 8]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"prompt": []}, InvalidArgument, "prompt_ids: is empty"),
        ({"prompt": [VOCAB]}, InvalidArgument, f"below {VOCAB}, got {VOCAB}"),
        ({"max_tokens": 0}, InvalidArgument, "max_tokens: must be at least 1"),
        ({"max_tokens": MAX_LEN}, InvalidArgument, f"at most {MAX_LEN}"),
        ({"draft_tokens": 99}, InvalidArgument, "0 to 16, got 99"),
        ({"lookahead": LookaheadSizes(window=65)}, InvalidArgument, "0, or 1 to 64, got 65"),
        ({"method": "medusa"}, FailedPrecondition, "has plain, draft, .*not medusa"),
        ({"acceptance": "hopeful"}, FailedPrecondition, "rejection, typical, not hopeful"),
        ({"method": "draft+plain"}, InvalidArgument, "plain is not one of them"),
        ({"method": "draft+draft"}, InvalidArgument, "joins different methods"),
        ({"sampling": SamplingParams(top_p=1.5)}, InvalidArgument, "top_p"),
        ({"sampling": SamplingParams(temperature=-1.0)}, InvalidArgument, "temperature"),
    ],
)
def test_bad_requests_are_refused(
    options: dict[str, object], error: type[PacelineError], words: str, target: Runner
) -> None:
    pair = Pair.make(target)
    arguments: dict[str, object] = {"prompt": [5, 6], "max_tokens": 4, **options}
    with pytest.raises(error, match=words):
        pair.submit(**arguments)  # type: ignore[arg-type]
    assert pair.engine.live == 0
