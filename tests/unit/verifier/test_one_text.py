"""One seed, one text: whatever the method, the drafter, the draft length, the batch or the wire.

Two numerics times 13 settings times 16 prompts-and-seeds: 208 generations each, and as many
again of plain decoding to compare with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from common.model.runner import Runner
from common.sampling_params import SamplingParams
from drafter.reply import Reply
from tests import tiny_models
from tests.inprocess import Collected, Pair, runner
from verifier.config import EngineConfig

TOKENS = 24
CASES = 12
VOCAB = 4096

Fault = Callable[[Reply], Iterable[Reply]]


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def target(dtype: str, demo_target: Path) -> Runner:
    return runner(demo_target, dtype)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def good(demo_draft: Path) -> Runner:
    """In one type whatever the target's is: drafts are only guesses."""
    return runner(demo_draft, "bfloat16")


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """A drafter of random weights."""
    directory = tmp_path_factory.mktemp("bad")
    return runner(tiny_models.save("llama", directory, vocab_size=VOCAB), "bfloat16")


def _case(index: int) -> tuple[list[int], SamplingParams]:
    draw = random.Random(index)
    prompt = [draw.randrange(5, VOCAB) for _ in range(draw.choice([1, 3, 14, 31, 60, 95]))]
    return prompt, SamplingParams(temperature=0.8, top_p=0.9, seed=1000 + index)


@pytest.fixture(scope="module")
def plain(target: Runner) -> list[list[int]]:
    """Each case decoded plainly and alone."""
    pair = Pair.make(target)
    texts = []
    for prompt, sampling in map(_case, range(CASES)):
        texts.append(pair.generate(prompt, TOKENS, sampling=sampling))
    return texts


def _alone(pair: Pair, **options: object) -> list[list[int]]:
    return [
        pair.generate(prompt, TOKENS, sampling=sampling, **options)
        for prompt, sampling in map(_case, range(CASES))
    ]


def _crowded(pair: Pair, **options: object) -> list[list[int]]:
    """Eight at a time; where drafts are asked for, each text must have had some."""
    texts: list[list[int]] = []
    for batch in (range(8), range(8, CASES)):
        heard = [
            pair.submit(prompt, TOKENS, sampling=sampling, **options)
            for prompt, sampling in map(_case, batch)
        ]
        pair.run()
        assert not options or all(map(_drafted, heard))
        texts.extend(one.ids for one in heard)
    return texts


def _drafted(heard: Collected) -> int:
    """Draft tokens that were checked."""
    counts = heard.events[-1].counts
    assert counts is not None
    return counts.drafted_tokens


@pytest.mark.parametrize("draft_tokens", [1, 3, 8])
def test_any_draft_length(
    draft_tokens: int, target: Runner, good: Runner, plain: list[list[int]]
) -> None:
    assert _crowded(Pair.make(target, good), draft_tokens=draft_tokens) == plain


def test_alone_or_beside_others(target: Runner, good: Runner, plain: list[list[int]]) -> None:
    assert _crowded(Pair.make(target)) == plain
    assert _alone(Pair.make(target, good)) == plain


def test_a_bad_drafter(target: Runner, bad: Runner, plain: list[list[int]]) -> None:
    assert _crowded(Pair.make(target, bad), draft_tokens=4) == plain


def _scrambled(reply: Reply) -> Iterable[Reply]:
    draw = random.Random(str(reply))
    yield reply._replace(ids=tuple(draw.randrange(VOCAB) for _ in reply.ids))


def test_random_drafts(target: Runner, good: Runner, plain: list[list[int]]) -> None:
    assert _crowded(Pair.make(target, good, fault=_scrambled), draft_tokens=4) == plain


def test_a_drafter_killed_half_way(target: Runner, good: Runner, plain: list[list[int]]) -> None:
    pair = Pair.make(target, good)
    heard = []
    for prompt, sampling in map(_case, range(CASES)):
        heard.append(pair.submit(prompt, TOKENS, sampling=sampling, draft_tokens=4))
    while min(len(one.ids) for one in heard) < TOKENS // 3:
        assert pair.engine.step()
    assert all(map(_drafted, heard))
    assert pair.link is not None
    pair.link.up = False
    pair.run()
    assert [one.ids for one in heard] == plain


class _BadWire:
    """Loses, repeats, delays, reorders and forges what the drafter sends."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._held: list[Reply] = []

    def __call__(self, reply: Reply) -> Iterable[Reply]:
        held, self._held = self._held, []
        self._draw.shuffle(held)
        match self._draw.choice(["pass", "lose", "repeat", "delay", "forge", "truncate"]):
            case "lose":
                out = []
            case "repeat":
                out = [reply, reply]
            case "delay":
                self._held, out = [reply], []
            case "forge":
                out = [reply._replace(incarnation=reply.incarnation + 1), *self._forged(reply)]
            case "truncate":
                out = [reply._replace(ids=reply.ids[:1])]
            case _:
                out = [reply]
        return [*held, *out]

    def _forged(self, reply: Reply) -> Iterable[Reply]:
        if reply.round is not None:
            yield reply._replace(round=reply.round._replace(path_hash=reply.round.path_hash ^ 1))
            yield reply._replace(round=reply.round._replace(base=reply.round.base + 1))
            yield reply._replace(session=reply.session + 1)


def test_a_bad_wire(target: Runner, good: Runner, plain: list[list[int]]) -> None:
    pair = Pair.make(target, good, fault=_BadWire(3))
    assert pair.link is not None
    news = pair.link.news
    assert news is not None
    assert _crowded(pair) == plain
    assert news.stale > 0, "forged and late branches are counted"


def test_preempted_and_computed_again(
    dtype: str, demo_target: Path, good: Runner, plain: list[list[int]]
) -> None:
    """A cache of a few blocks: sequences lose theirs half-way and prefill anew, in chunks."""
    block = 16 * 2 * 2 * 32 * 12 * (2 if dtype == "bfloat16" else 4)
    tight = runner(demo_target, dtype, kv_bytes=18 * block)  # type: ignore[arg-type]
    pair = Pair.make(tight, good, EngineConfig(max_batch_tokens=40))
    assert _crowded(pair) == plain
    tight.pool.blocks.check()
    assert tight.pool.blocks.held == 0


def test_different_seeds_differ(target: Runner) -> None:
    pair, (prompt, sampling) = Pair.make(target), _case(0)
    texts = {
        tuple(pair.generate(prompt, TOKENS, sampling=replace(sampling, seed=seed)))
        for seed in range(8)
    }
    assert len(texts) == 8


def test_every_warper_under_speculation(target: Runner, good: Runner) -> None:
    """Penalties look at each node's own history; the text must not notice the tree."""
    sampling = SamplingParams(
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.3,
        logit_bias={7: 2.0, 300: -5.0},
        seed=5,
    )
    prompt, _ = _case(3)
    alone, helped = Pair.make(target), Pair.make(target, good)
    for chosen in (sampling, replace(sampling, temperature=0.0)):
        expected = alone.generate(prompt, 40, sampling=chosen)
        assert helped.generate(prompt, 40, sampling=chosen, draft_tokens=6) == expected


def test_counts_add_up(target: Runner, good: Runner) -> None:
    pair = Pair.make(target, good)
    prompt, _ = _case(2)
    heard: Collected = pair.submit(prompt, 40)
    pair.run()
    counts = heard.events[-1].counts
    assert counts is not None
    told = [event.counts for event in heard.events if event.counts is not None]
    assert [each.rounds for each in told] == list(range(1, len(heard.events) + 1))
    assert [each.drafted_tokens for each in told] == sorted(each.drafted_tokens for each in told)
    assert counts.rounds == len(heard.events)
    assert counts.accepted_tokens == sum(counts.accepted_per_position)
    assert counts.accepted_tokens <= counts.drafted_tokens
    assert counts.rounds <= len(heard.ids) <= counts.rounds + counts.accepted_tokens
    assert counts.accepted_per_position == sorted(counts.accepted_per_position, reverse=True)
