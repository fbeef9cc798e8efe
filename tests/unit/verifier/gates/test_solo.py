"""A text alone: with its method where that is faster, at next to no cost where it is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.gates.solo import Solo

PLAIN_S = 0.002


class Text:
    """A text whose rounds with drafts have 1 to 3 tokens and take so many plain steps.

    Args:
        solo: Decides.
        steps: What a round with drafts takes, in plain steps; two bring as much as none.
    """

    def __init__(self, solo: Solo, steps: float) -> None:
        self.solo, self._steps = solo, steps
        self._source = random.Random(0)
        self.tokens = self.drafted = 0
        self.now = 100.0

    def write(self, tokens: int) -> float:
        """Tokens over those that plain steps had brought in the same time."""
        began, before = self.now, self.tokens
        while self.tokens < before + tokens:
            drafting = self.solo.drafting
            made = self._source.choice((1, 2, 3)) if drafting else 1
            self.tokens += made
            self.drafted += drafting
            self.now += PLAIN_S * (self._steps if drafting else 1)
            self.solo.ended(made, self.now, drafted=drafting, alone=True)
        return (self.tokens - before) / ((self.now - began) / PLAIN_S)


@given(steps=st.floats(0.8, 4))
def test_a_text_is_nearly_as_fast_as_it_could_be(steps: float) -> None:
    """With a method that is up to half as fast as none."""
    text = Text(Solo(lambda: PLAIN_S), steps)
    gained = text.write(4000)
    assert gained > 0.95 * max(2 / steps, 1)


@pytest.mark.parametrize("believed_s", [PLAIN_S / 3, PLAIN_S * 3])
def test_what_a_plain_step_was_believed_to_take_is_soon_seen(believed_s: float) -> None:
    """As where texts of before were much shorter."""
    text = Text(Solo(lambda: believed_s), steps=1.25)
    assert text.write(300) > 0.93 * 2 / 1.25


@pytest.mark.parametrize("tokens", [8, 100])
def test_one_slow_round_decides_nothing(tokens: int) -> None:
    """Nor the first that counts: those before it count for neither side."""
    solo = Solo(lambda: PLAIN_S)
    text = Text(solo, steps=1.4)
    text.write(tokens)
    text.now += 1.0
    text.write(200)
    assert solo.drafting
    assert text.drafted > 0.45 * text.tokens


def test_rounds_beside_others_count_for_nothing() -> None:
    solo = Solo(lambda: PLAIN_S)
    for turn in range(200):  # alone, beside another, and whoever was alone before
        solo.ended(1, 100.0 + turn, drafted=True, alone=turn % 2 == 0)
    assert solo.drafting


def test_rounds_that_others_left_it_off_in_count_for_nothing() -> None:
    solo = Solo(lambda: PLAIN_S)
    for turn in range(200):
        solo.ended(1, 100.0 + turn, drafted=False, alone=True)
    assert solo.drafting


def test_passes_of_one_call_are_a_plain_round_of_many() -> None:
    solo = Solo(lambda: PLAIN_S)
    text = Text(solo, steps=4)
    while solo.drafting:
        text.write(1)
    for _ in range(12):
        text.now += 16 * PLAIN_S
        solo.ended(16, text.now, drafted=False, alone=True, passes=16)
    assert solo._without.tokens_per_s == pytest.approx(1 / PLAIN_S)
