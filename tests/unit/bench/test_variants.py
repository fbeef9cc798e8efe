"""A variant that drafts is measured with a drafter, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench import variants
from bench.in_turns import measure
from bench.measurement import Pass
from bench.variants import Check, ConcurrentVariant, ContendersCrowd, GatewayVariant, Variant
from common.errors import StartupError
from tests.unit.bench.samples import run


class Asked:
    """A client that is asked; what comes of it is timed by nobody."""

    def generate(self, **_: object) -> None:
        pass


def crowd(write: Callable[..., Any], prompts: int, *_: object) -> Pass:
    return Pass.of([write(index, lambda at_s, tokens: None) for index in range(prompts)])


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Check], list[Variant]]:
    monkeypatch.setattr(variants, "timed", lambda generation, told=None: run(3, 0.1, 3))
    monkeypatch.setattr(variants, "crowd", crowd)
    client: Any = Asked()

    def made(method: str, check: Check) -> list[Variant]:
        return [
            GatewayVariant(method, client, method, check=check),
            ConcurrentVariant(f"{method}, 2 at once", client, method, 2, check=check),
        ]

    return made


def test_those_that_draft_are_left_out_once_their_drafter_is_gone(
    make: Callable[[str, Check], list[Variant]],
) -> None:
    checked = 0

    def gone() -> None:
        nonlocal checked
        checked += 1
        if checked > 4:  # in the second repetition: what they measured before is not shown either
            raise StartupError("its drafter is gone")

    found = measure(
        [*make("plain", gone), *make("draft+ngram", gone)],
        [[1], [2]],
        repetitions=3,
        max_tokens=8,
        progress=lambda *_: None,
    )
    assert {name: len(passes) for name, passes in found.by_variant.items()} == {
        "plain": 3,
        "plain, 2 at once": 3,
    }
    assert sorted(found.left_out) == [
        "draft+ngram, 2 at once: its drafter is gone",
        "draft+ngram: its drafter is gone",
    ]


def test_a_contender_has_been_asked_everything_before_it_counts() -> None:
    asked: list[tuple[int, int]] = []

    class Peer:
        def crowd(self, prompts: list[list[int]], max_tokens: int, *_: float) -> Pass:
            asked.append((len(prompts), max_tokens))
            return Pass.of([])

    peer: Any = Peer()
    crowd_of = ContendersCrowd("peer, 2 at once", peer, 2)
    for prompts in ([[1]], [[1], [2]], [[1], [2]]):
        crowd_of.measure(prompts, 8)
    assert asked == [(1, 2), (1, 8), (2, 2), (2, 8), (2, 8)]
