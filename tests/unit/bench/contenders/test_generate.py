from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.contenders.contender import Loading
from bench.contenders.generate import Assisted, Clock, PromptLookup, Transformers
from bench.measurement import kept
from bench.unseen import Unseen
from common.errors import StartupError
from tests import tiny_models

PROMPT = [1, 300, 301, 302, 300, 301, 302]


@pytest.mark.parametrize("kind", [Assisted, PromptLookup])
def test_speculation_of_transformers_gives_the_same_ids(
    kind: type[Transformers], demo_target: Path, demo_draft: Path
) -> None:
    loading = Loading(target=str(demo_target), draft=str(demo_draft), dtype="float32")
    expected = Transformers(loading).generate(PROMPT, 24, seed=0)
    sample = kind(loading).generate(PROMPT, 24, seed=0)
    assert sample.ids == expected.ids
    # It starts the clock with all tokens of its first pass.
    assert 0 < sample.tokens <= expected.tokens == len(expected.ids) - 1


def test_a_batch_of_transformers_has_the_texts_that_each_prompt_has_alone(
    demo_target: Path,
) -> None:
    engine = Transformers(Loading(target=str(demo_target), dtype="float32"))
    prompts = [PROMPT, PROMPT[:3], PROMPT[2:]]
    alone = [engine.generate(prompt, 12, seed=0) for prompt in prompts]
    done = engine.crowd(prompts, 12, at_once=2, least_s=0)
    assert [sample.ids for sample in done.samples] == [sample.ids for sample in alone]
    assert [sample.tokens for sample in done.samples] == [sample.tokens for sample in alone]
    # The fourth place repeats the first prompt; each batch's clock starts with its first tokens.
    assert done.tokens == sum(sample.tokens for sample in (*alone, alone[0]))
    first, _, second = (sample.seconds for sample in done.samples)
    assert done.seconds == pytest.approx(first + second)


def test_a_batch_of_transformers_may_be_of_prompts_nobody_asked(tmp_path: Path) -> None:
    model = str(tiny_models.save("llama", tmp_path))
    prompts, unseen = [[1, 5, 9], [1, 7]], Unseen((20, 30))
    expected = [
        Transformers(Loading(target=model)).generate(unseen(prompt), 6, seed=0)
        for prompt in prompts
    ]
    engine = Transformers(Loading(target=model, marks=(20, 30)))
    done = engine.crowd(prompts, 6, at_once=2, least_s=0)
    assert [sample.ids for sample in done.samples] == [sample.ids for sample in expected]
    assert done.tokens == sum(len(sample.ids) for sample in expected), "prefill counts"
    assert done.seconds > max(sample.seconds for sample in done.samples)


def test_only_ends_are_taken_from_the_models_settings_for_generation(tmp_path: Path) -> None:
    model, prompt = tiny_models.save("llama", tmp_path), [5, 9, 7]
    plain = Transformers(Loading(target=str(model))).generate(prompt, 24, seed=0).ids
    file = model / "generation_config.json"
    settings = json.loads(file.read_text()) | {"eos_token_id": [2, plain[9]]}
    penalties = {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1, "min_new_tokens": 24}
    file.write_text(json.dumps(settings | penalties))
    found = Transformers(Loading(target=str(model))).generate(prompt, 24, seed=0).ids
    assert found == plain[: plain.index(plain[9]) + 1]


def test_assisted_generation_needs_a_draft(demo_target: Path) -> None:
    with pytest.raises(StartupError, match="needs a draft model"):
        Assisted(Loading(target=str(demo_target)))


def test_the_clock_starts_with_the_first_new_tokens() -> None:
    clock = Clock()
    clock.put(torch.tensor([[1, 2, 3]]))
    clock.put(torch.tensor([4, 5]))
    clock.put(torch.tensor([6]))
    clock.end()
    assert clock.first_tokens == 2
    assert clock.at_s == sorted(clock.at_s)
    assert len(clock.at_s) == 2


def test_what_comes_after_the_end_is_no_output() -> None:
    assert kept([5, 6, 2, 7, 2], {2, 3}) == [5, 6, 2]
    assert kept([5, 6], {2}) == [5, 6]
    assert kept([], {2}) == []
