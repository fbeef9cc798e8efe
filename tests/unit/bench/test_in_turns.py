from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.in_turns import measure
from bench.measurement import Pass
from common.errors import StartupError
from tests.unit.bench.samples import one_pass, sample


class Counting:
    """A variant that notes its turns and may break."""

    def __init__(
        self,
        name: str,
        turns: list[tuple[str, int]],
        fails_at: int = 99,
        error: type[BaseException] = StartupError,
    ) -> None:
        self.name = name
        self._turns = turns
        self._calls = 0
        self._fails_at, self._error = fails_at, error

    def measure(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Pass:
        self._turns.append((self.name, len(prompts)))
        self._calls += 1
        if self._calls == self._fails_at:
            raise self._error("gone")
        return one_pass(*(sample(max_tokens, 1.0) for _ in prompts))


def test_turns_change_their_order_after_a_warm_up() -> None:
    turns: list[tuple[str, int]] = []
    told: list[tuple[str, int, int]] = []
    passes = measure(
        [Counting("a", turns), Counting("b", turns)],
        [[1], [2], [3]],
        repetitions=2,
        max_tokens=8,
        progress=lambda *what: told.append(what),
    )
    assert turns == [("a", 1), ("b", 1), ("a", 3), ("b", 3), ("b", 3), ("a", 3)]
    assert {name: len(done) for name, done in passes.by_variant.items()} == {"a": 2, "b": 2}
    assert passes.left_out == []
    assert told[0] == ("warm-up: a", 0, 6)
    assert told[-1] == ("2/2: a", 5, 6)


def test_one_that_fails_is_left_out_and_the_others_go_on() -> None:
    turns: list[tuple[str, int]] = []
    variants = [Counting("a", turns), Counting("b", turns, 1), Counting("c", turns, 2)]
    passes = measure(variants, [[1]], repetitions=2, max_tokens=8, progress=lambda *_: None)
    assert list(passes.by_variant) == ["a"]
    assert len(passes.by_variant["a"]) == 2
    assert passes.left_out == ["b: gone", "c: gone"]


def test_what_is_whole_stays_where_somebody_ends_it() -> None:
    turns: list[tuple[str, int]] = []
    for fails_at, whole in ((4, 2), (3, 1)):
        variants = [Counting("a", turns), Counting("b", turns, fails_at, KeyboardInterrupt)]
        passes = measure(variants, [[1]], repetitions=5, max_tokens=8, progress=lambda *_: None)
        assert passes.interrupted
        assert {name: len(found) for name, found in passes.by_variant.items()} == {
            "a": whole,
            "b": whole,
        }
        assert passes.left_out == [f"all but {whole} of 5 repetitions: interrupted"]
    early = [Counting("a", turns), Counting("b", turns, 2, KeyboardInterrupt)]
    with pytest.raises(KeyboardInterrupt):
        measure(early, [[1]], repetitions=5, max_tokens=8, progress=lambda *_: None)
