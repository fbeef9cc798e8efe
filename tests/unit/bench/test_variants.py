"""Several at once: every prompt has its sample, and the clock stops where a worker runs out."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from paceline import Chunk

from bench import variants
from bench.variants import ConcurrentVariant

WAIT_S = 10.0
PROMPTS = ([1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11, 12])


@dataclass
class Echo:
    """A generation that repeats its prompt, token by token; the last one when it may."""

    prompt: Sequence[int]
    nearly: threading.Event
    may_end: threading.Event

    def __iter__(self) -> Iterator[Chunk]:
        for token in self.prompt[:-1]:
            yield Chunk(token_ids=(token,), text="", sources=())
        self.nearly.set()
        assert self.may_end.wait(WAIT_S)
        yield Chunk(token_ids=(self.prompt[-1],), text="", sources=())

    def result(self) -> SimpleNamespace:
        return SimpleNamespace(token_ids=tuple(self.prompt), speculation=None)


class Echoing:
    """A client whose generations are echoes.

    Args:
        slow: A prompt whose last token comes only after `may_end`; others wait for the slow one to
            have come so far.
    """

    def __init__(self, slow: Sequence[int] = ()) -> None:
        self.asked: list[tuple[int, ...]] = []
        self.may_end = threading.Event()
        self._slow, self._nearly, self._always = slow, threading.Event(), threading.Event()
        self._always.set()
        if not slow:
            self._nearly.set()

    def generate(self, *, token_ids: Sequence[int], seed: int, **_: object) -> Echo:
        assert PROMPTS[seed] == token_ids, "the same seed for a prompt each time"
        self.asked.append(tuple(token_ids))
        if token_ids == self._slow:
            return Echo(token_ids, self._nearly, self.may_end)
        return Echo(token_ids, self._always, self._nearly)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_each_prompt_has_its_sample_however_often_it_ran(
    monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(variants, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    client = Echoing()
    one = ConcurrentVariant("", client, "plain", concurrency, least_s=50)  # type: ignore[arg-type]
    done = one.measure(PROMPTS, 8)
    assert [list(sample.ids) for sample in done.samples] == [list(ids) for ids in PROMPTS]
    assert len(client.asked) > len(PROMPTS)
    assert set(client.asked) == {tuple(ids) for ids in PROMPTS}
    assert 0 < done.tokens < sum(map(len, client.asked))


def test_what_comes_once_a_worker_has_run_out_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, quick = PROMPTS[:2]
    client, ticks = Echoing(slow), itertools.count()
    looks = Counter[int]()
    quick_looks = len(quick) + 2  # at each token, whether there is more to do, and at the end

    def clock() -> int:
        now = next(ticks)
        me = threading.get_ident()
        looks[me] += 1
        if looks[me] == quick_looks:
            client.may_end.set()
        return now

    monkeypatch.setattr(variants, "time", SimpleNamespace(perf_counter=clock))
    one = ConcurrentVariant("", client, "plain", 2, least_s=-1)  # type: ignore[arg-type]
    done = one.measure([slow, quick], 8)
    assert done.tokens == len(slow) + len(quick) - 2  # neither the first of all nor the last
    assert [list(sample.ids) for sample in done.samples] == [slow, quick]
