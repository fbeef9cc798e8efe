"""Totals by method."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.clock import Clock
from verifier import totals as module
from verifier.totals import TOGETHER_S, Totals


def test_rounds_count_where_something_was_drafted() -> None:
    totals = Totals()
    totals.round("draft", drafted=4, accepted=2)
    totals.round("draft", drafted=3, accepted=3)
    totals.round("draft", drafted=0, accepted=0)
    totals.round("plain", drafted=0, accepted=0)
    (drafts,) = totals.drafts.values()
    assert (drafts.rounds, drafts.drafted_tokens, drafts.accepted_tokens) == (2, 7, 5)
    assert drafts.accepted_per_position == [2, 2, 1]


def test_prompts() -> None:
    totals = Totals()
    totals.prompt(10, 0)
    totals.prompt(20, 16)
    assert (totals.prompt_tokens, totals.cached_tokens) == (30, 16)


def test_texts_whose_prompt_is_still_to_be_computed() -> None:
    totals = Totals()
    for _ in range(3):
        totals.begin(arrived_at=0.0)
    totals.prompt(10, 0)
    totals.end(started=True)
    totals.end(started=False)
    assert (totals.starting, totals.sequences) == (1, 1)


def test_texts_that_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    totals, before = Totals(), 0
    for texts in (3, 1, 2):
        clock.now += 1.0
        began = clock.now
        for _ in range(texts):
            totals.begin(clock.now)
            clock.now += 0.9 * TOGETHER_S / texts
        clock.now += TOGETHER_S
        totals.begin(clock.now)
        assert totals.busy_since == began
        assert (totals.together, totals.together_before) == (texts, before)
        for _ in range(texts + 1):
            totals.end(started=True)
        before = texts


def test_time_without_sequences_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    totals = Totals()
    for idle_s, lasting_s in ((3.0, 5.0), (0.5, 2.0)):
        clock.now += idle_s
        totals.begin(clock.now)
        totals.begin(clock.now)
        clock.now += lasting_s
        totals.end(started=True)
        clock.now += lasting_s
        totals.end(started=True)
    assert (totals.sequences, totals.idle_s) == (0, 3.5)
