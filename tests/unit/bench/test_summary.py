from __future__ import annotations

import pytest

from bench import prompts, summary
from bench.measurement import Pass, Sample
from bench.prompts import Prompt
from tests.unit.bench.samples import one_pass, sample, speculation

DOMAINS = {"dialogue": [0], "story": [1]}


def test_a_row_has_domains_speed_ups_and_says_how_many_outputs_agree() -> None:
    plain = [one_pass(sample(100, 1.0, (1, 2)), sample(100, 1.0, (3, 4)))] * 2
    passes = [
        one_pass(sample(100, 0.5, (1, 2)), sample(100, 0.25, (3, 4))),
        one_pass(sample(100, 0.5, (1, 2)), sample(100, 0.25, (3, 5))),
    ]
    row = summary.row("draft", passes, plain, DOMAINS)
    assert row.tokens_per_s.value == pytest.approx(200 / 0.75)
    assert row.by_domain["story"].value == pytest.approx(400.0)
    assert row.speedup.value == pytest.approx(2 / 0.75)
    assert row.speedup_by_domain["dialogue"].value == pytest.approx(2.0)
    assert row.speedup_by_domain["story"].value == pytest.approx(4.0)
    assert row.repetitions == pytest.approx([200 / 0.75] * 2)
    assert row.same_ids == 1
    assert row.mean_accepted_length is None
    assert row.acceptance_rate is None


def test_statistics_are_totals_not_means_of_means() -> None:
    one = one_pass(
        sample(9, 1.0, (0,) * 10, speculation(2, 10, 8)),
        sample(1, 1.0, (0,) * 2, speculation(2, 5, 0)),
    )
    row = summary.row("draft", [one], [one], DOMAINS)
    assert row.mean_accepted_length == pytest.approx(12 / 4)
    assert row.acceptance_rate == pytest.approx(8 / 15)


def test_a_load_counts_the_wall_clock() -> None:
    together = Pass(samples=(sample(10, 9.0, (1,)),), tokens=1000, seconds=2.0)
    load = summary.load("plain", 8, [together], [one_pass(sample(10, 1.0, (1,)))])
    assert load.tokens_per_s.value == pytest.approx(500.0)
    assert load.same_ids == 1
    assert load.cached_share is None


def test_a_load_says_what_was_cached_and_nothing_of_other_prompts_texts() -> None:
    asked = [
        Sample(ids=(1,), tokens=1, seconds=1.0, prompt_tokens=size, cached_tokens=cached)
        for size, cached in ((30, 27), (10, 0))
    ]
    load = summary.load("plain", 8, [one_pass(*asked)], [one_pass(*asked)], unseen=True)
    assert load.cached_share == pytest.approx(27 / 40)
    assert load.same_ids is None


def test_domains_are_found_by_prompt() -> None:
    chosen = [Prompt(domain=name, source="us", text="x") for name in ("story", "math", "story")]
    assert summary.by_domain(chosen) == {"story": [0, 2], "math": [1]}


def test_prompts_cover_four_domains_evenly() -> None:
    loaded = prompts.load()
    assert {name: len(part) for name, part in summary.by_domain(loaded).items()} == {
        "dialogue": 6,
        "arithmetic": 6,
        "story": 6,
        "repeating": 6,
    }
    assert len({(prompt.text, str(prompt.messages)) for prompt in loaded}) == 24
    assert all(bool(prompt.messages) != bool(prompt.text) for prompt in loaded)
    assert all(prompt.source for prompt in loaded)


def test_ordinary_ids_are_those_of_all_words() -> None:
    class Lengths:
        """A tokenizer whose ids are the words' lengths, behind a first one of its own."""

        def tokenize(self, text: str) -> list[int]:
            return [0, *map(len, text.split())]

    found = prompts.ordinary(Lengths())  # type: ignore[arg-type]
    words = [word for prompt in prompts.load() for word in prompt.text.split()]
    assert {len(word) for word in words} <= set(found)
    assert 0 not in found
    assert list(found) == sorted(set(found))


def test_conversations_end_with_the_user() -> None:
    for prompt in prompts.load():
        roles = [message["role"] for message in prompt.messages]
        assert roles == ["user" if index % 2 == 0 else "assistant" for index in range(len(roles))]
        assert not roles or roles[-1] == "user"


def test_a_few_prompts_of_each_domain() -> None:
    assert [prompt.domain for prompt in prompts.load(1)] == [
        "dialogue",
        "arithmetic",
        "story",
        "repeating",
    ]
