"""One seed, one text, with heads and with several methods at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from common.model.loader import Dtype
from common.model.medusa.heads import MedusaHeads
from common.model.runner import Runner
from common.sampling_params import SamplingParams
from tests.inprocess import Pair, eagle_of, heads, runner
from verifier.config import EngineConfig
from verifier.gates.gate import Gate
from verifier.gates.solo import Solo

TOKENS = 24
CASES = 8
VOCAB = 4096


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> Dtype:
    chosen: Dtype = request.param
    return chosen


@pytest.fixture(scope="module")
def target(dtype: Dtype, demo_target: Path) -> Runner:
    return runner(demo_target, dtype)


@pytest.fixture(scope="module")
def draft(demo_draft: Path) -> Runner:
    """In one type whatever the target's is: drafts are only guesses."""
    return runner(demo_draft, "bfloat16")


@pytest.fixture(scope="module")
def trained(demo_medusa: Path, target: Runner) -> MedusaHeads:
    return heads(demo_medusa, target)


@pytest.fixture(scope="module")
def tapped(dtype: Dtype, demo_target: Path, demo_eagle: Path) -> Runner:
    """The target, with an EAGLE head to tell its states."""
    return runner(demo_target, dtype, eagle=demo_eagle)


Make = Callable[[str], Pair]


@pytest.fixture(scope="module")
def make(
    target: Runner, tapped: Runner, draft: Runner, trained: MedusaHeads, demo_eagle: Path
) -> Make:
    """Makes what a method takes; without an EAGLE head nothing is tapped."""

    def made(method: str) -> Pair:
        if "eagle" not in method:
            return Pair.make(target, draft, heads=trained)
        return Pair.make(tapped, draft, heads=trained, eagle=eagle_of(demo_eagle, tapped))

    return made


def _case(index: int) -> tuple[list[int], SamplingParams]:
    draw = random.Random(index)
    prompt = [draw.randrange(5, VOCAB) for _ in range(draw.choice([1, 3, 14, 31, 60]))]
    if index % 2:
        return prompt, SamplingParams(temperature=0.8, top_p=0.9, seed=index)
    return prompt, SamplingParams(repetition_penalty=1.1 if index % 4 else 1.0)


def _texts(pair: Pair, **options: object) -> list[list[int]]:
    return pair.generate_all(map(_case, range(CASES)), TOKENS, **options)


@pytest.fixture(scope="module")
def plain(target: Runner) -> list[list[int]]:
    return _texts(Pair.make(target), method="plain")


@pytest.mark.parametrize(
    "method",
    [
        "medusa",
        "eagle",
        "medusa+ngram",
        "eagle+ngram",
        "draft+lookahead",
        "draft+medusa+ngram",
        "draft+eagle+medusa",
    ],
)
@pytest.mark.parametrize("draft_tokens", [0, 5])
def test_methods_and_hybrids(
    method: str, draft_tokens: int, make: Make, plain: list[list[int]]
) -> None:
    pair = make(method)
    assert _texts(pair, method=method, draft_tokens=draft_tokens) == plain
    pair.engine._runner.pool.blocks.check()
    assert pair.engine._runner.pool.blocks.held == 0


def test_the_tree_that_came_with_the_heads(
    target: Runner, trained: MedusaHeads, plain: list[list[int]]
) -> None:
    pair = Pair.make(target, config=EngineConfig(medusa_tree="static"), heads=trained)
    assert _texts(pair, method="medusa") == plain


def test_heads_guess_as_well_beside_other_texts(target: Runner, trained: MedusaHeads) -> None:
    """They run at the state of each text's own last token."""
    pair = Pair.make(target, config=EngineConfig(medusa_tree="static"), heads=trained)
    accepted = []
    for together in (False, True):
        heard = []
        for prompt, sampling in map(_case, range(4)):
            options = {"sampling": sampling, "method": "medusa", "draft_tokens": 5}
            heard.append(pair.submit(prompt, TOKENS, **options))
            if not together:
                pair.run()
        pair.run()
        accepted.append(sum(one.events[-1].counts.accepted_tokens for one in heard))
    assert accepted[1] == pytest.approx(accepted[0], rel=0.1)
    assert accepted[0] > TOKENS


@pytest.mark.parametrize("method", ["medusa", "eagle", "draft+medusa+ngram"])
def test_a_cache_that_is_too_small_for_all(
    method: str,
    dtype: Dtype,
    demo_target: Path,
    draft: Runner,
    trained: MedusaHeads,
    demo_eagle: Path,
    plain: list[list[int]],
) -> None:
    """Trees are cut and sequences preempted on the way."""
    kv_bytes = (3 << 20) * (2 if dtype == "float32" else 1)
    tight = runner(demo_target, dtype, kv_bytes=kv_bytes, eagle=demo_eagle)
    pair = Pair.make(tight, draft, heads=trained, eagle=eagle_of(demo_eagle, tight))
    assert _texts(pair, method=method) == plain


@pytest.mark.parametrize(
    "method", ["medusa", "eagle", "ngram", "lookahead", "draft+ngram", "draft+medusa+lookahead"]
)
def test_drafts_that_are_left_off_and_taken_up_again(
    method: str, make: Make, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    monkeypatch.setattr(Gate, "drafting", lambda gate, sequences, now: draw.random() < 0.6)
    assert _texts(make(method), method=method) == plain


@pytest.mark.parametrize(
    "method", ["medusa", "eagle", "ngram", "lookahead", "draft+medusa+lookahead"]
)
def test_a_text_alone_leaves_its_method_off_and_takes_it_up_again(
    method: str, make: Make, plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    told: dict[Solo, list[bool]] = {}

    def ended(solo: Solo, *_: object, drafted: bool, **__: object) -> None:
        told.setdefault(solo, []).append(drafted == solo.drafting)
        solo.drafting = draw.random() < 0.6

    monkeypatch.setattr(Solo, "ended", ended)
    pair = make(method)
    for index in range(6):
        prompt, sampling = _case(index)
        assert pair.generate(prompt, TOKENS, sampling=sampling, method=method) == plain[index]
    assert len(told) == 6
    for _prompt, *rounds in told.values():
        assert all(rounds), "it is asked where it is to draft, and only there"


def test_a_text_leaves_its_method_off_only_where_it_is_alone_and_asks_for_no_length(
    target: Runner, trained: MedusaHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(solo: Solo, *_: object, **__: object) -> None:
        solo.drafting = False

    monkeypatch.setattr(Solo, "ended", ended)
    monkeypatch.setattr(Gate, "drafting", lambda gate, sequences, now: True)
    pair = Pair.make(target, heads=trained)
    drafted = []
    for asks in ((0,), (4,), (0, 0)):
        some = [pair.submit([5, 6, 7], 32, method="medusa", draft_tokens=ask) for ask in asks]
        pair.run()
        drafted += [one.events[-1].counts.drafted_tokens for one in some if one.events[-1].counts]
    assert [count > 0 for count in drafted] == [False, True, True, True]


@pytest.mark.parametrize("method", ["medusa", "eagle", "ngram", "lookahead", "medusa+ngram"])
def test_where_drafts_cost_more_than_they_bring_there_are_none(
    method: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for those who ask for them."""
    monkeypatch.setattr(Gate, "drafting", lambda gate, sequences, now: False)
    pair = make(method)
    repeating = [1, *[7, 8, 9, 10] * 8]
    some = [pair.submit(repeating, 32, method=method, draft_tokens=ask) for ask in (0, 0, 4)]
    pair.run()
    drafted = [one.events[-1].counts.drafted_tokens for one in some if one.events[-1].counts]
    assert drafted[:2] == [0, 0]
    assert drafted[2] > 0


@pytest.mark.parametrize("method", ["draft+medusa", "draft+eagle"])
def test_every_accepted_token_has_its_method(method: str, make: Make) -> None:
    pair = make(method)
    heard = pair.submit([1, 3, 500, 600], 64, method=method)
    pair.run()
    counts = heard.events[-1].counts
    assert counts is not None
    assert sum(counts.accepted_by_method.values()) == counts.accepted_tokens > 0
    assert set(counts.accepted_by_method) <= set(method.split("+"))
