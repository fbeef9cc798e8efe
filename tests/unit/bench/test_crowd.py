"""Several at once: every prompt has its sample, and the clock stops where a worker runs out."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from paceline import Chunk

from bench import crowd as module
from bench.crowd import Note, crowd
from bench.measurement import Sample
from bench.unseen import Unseen
from bench.variants import ConcurrentVariant
from common.errors import StartupError
from tests.unit.bench.samples import sample

WAIT_S = 10.0
PROMPTS = ([1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11, 12])


@pytest.mark.parametrize("at_once", [1, 3])
def test_each_prompt_has_its_sample_however_often_it_ran(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    asked: list[int] = []

    def echo(index: int, note: Note) -> Sample:
        asked.append(index)
        for _ in PROMPTS[index]:
            note(next(ticks), 1)
        return sample(0, 0.0, PROMPTS[index])

    done = crowd(echo, len(PROMPTS), at_once, least_s=50)
    assert [list(one.ids) for one in done.samples] == [list(ids) for ids in PROMPTS]
    assert len(asked) > len(PROMPTS)
    assert set(asked) == set(range(len(PROMPTS)))
    assert 0 < done.tokens < sum(len(PROMPTS[index]) for index in asked)


def test_what_comes_once_a_worker_has_run_out_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, quick = PROMPTS[:2]
    ticks, looks = itertools.count(), Counter[int]()
    nearly, may_end = threading.Event(), threading.Event()

    def clock() -> int:
        now, me = next(ticks), threading.get_ident()
        looks[me] += 1
        # The quick one looks whether there is more to do, and, once idle, a second time.
        if threads.get("quick") == me and looks[me] == 2:
            may_end.set()
        return now

    threads: dict[str, int] = {}
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clock))

    def write(index: int, note: Note) -> Sample:
        prompt = (slow, quick)[index]
        if prompt is quick:
            threads["quick"] = threading.get_ident()
            assert nearly.wait(WAIT_S)
        for _ in prompt[:-1]:
            note(next(ticks), 1)
        if prompt is slow:
            nearly.set()
            assert may_end.wait(WAIT_S)
        note(next(ticks), 1)
        return sample(0, 0.0, prompt)

    done = crowd(write, 2, 2, least_s=-1)
    assert done.tokens == len(slow) + len(quick) - 2  # neither the first of all nor the last
    assert [list(one.ids) for one in done.samples] == [slow, quick]


@pytest.mark.parametrize("failing", [0, 1])
def test_where_a_text_fails_no_other_one_is_begun(failing: int) -> None:
    begun: list[int] = []

    def write(index: int, note: Note) -> Sample:
        begun.append(index)
        if index == failing:
            raise StartupError("gone")
        time.sleep(0.001)
        return sample(0, 0.0)

    with pytest.raises(StartupError, match="gone"):
        crowd(write, 10_000, 2, least_s=0)
    assert len(begun) < 10_000


@dataclass
class Echo:
    """A generation that repeats its prompt, token by token."""

    prompt: Sequence[int]

    def __iter__(self) -> Iterator[Chunk]:
        for token in self.prompt:
            yield Chunk(token_ids=(token,), text="", sources=())

    def result(self) -> SimpleNamespace:
        usage = SimpleNamespace(prompt_tokens=len(self.prompt), cached_tokens=1)
        return SimpleNamespace(token_ids=tuple(self.prompt), speculation=None, usage=usage)


class Echoing:
    """A client whose generations are echoes."""

    def __init__(self, new: int = 0) -> None:
        self.asked: list[tuple[int, ...]] = []
        self._new = new

    def generate(self, *, token_ids: Sequence[int], seed: int, **_: object) -> Echo:
        old = [*token_ids[:1], *token_ids[1 + self._new :]]
        assert PROMPTS[seed] == old, "the same seed for a prompt each time"
        self.asked.append(tuple(token_ids))
        return Echo(token_ids)


def test_texts_through_the_gateway_are_noted_as_they_come() -> None:
    one = ConcurrentVariant("", Echoing(), "plain", 3, least_s=0.5)  # type: ignore[arg-type]
    done = one.measure(PROMPTS, 8)
    assert [list(each.ids) for each in done.samples] == [list(ids) for ids in PROMPTS]
    assert [each.tokens for each in done.samples] == [len(ids) - 1 for ids in PROMPTS]
    assert [each.prompt_tokens for each in done.samples] == list(map(len, PROMPTS))
    assert [each.cached_tokens for each in done.samples] == [1] * len(PROMPTS)
    assert done.tokens > sum(map(len, PROMPTS))
    assert done.seconds > 0.1


def test_unseen_prompts_are_asked_once_by_all_methods_of_a_deployment() -> None:
    client, unseen = Echoing(new=2), Unseen(range(100, 200))
    for method in ("plain", "ngram"):
        one = ConcurrentVariant("", client, method, 3, unseen=unseen, least_s=0.05)  # type: ignore[arg-type]
        done = one.measure(PROMPTS, 8)
        assert [each.prompt_tokens for each in done.samples] == [len(ids) + 2 for ids in PROMPTS]
    assert len(client.asked) >= 2 * len(PROMPTS)
    assert len({ids[:3] for ids in client.asked}) == len(client.asked)
