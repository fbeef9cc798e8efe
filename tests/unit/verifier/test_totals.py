"""Totals by method."""

from __future__ import annotations

from verifier.totals import Totals


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
