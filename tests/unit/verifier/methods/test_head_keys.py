"""Marks of slots: they tell texts apart from the first token that differs on, and no earlier."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from verifier.methods.head_keys import HeadKeys, TextMarks

IDS = st.lists(st.integers(0, 2**18), min_size=2, max_size=60)

pytestmark = pytest.mark.filterwarnings("error")


def _marks(ids: list[int]) -> NDArray[np.uint64]:
    """Of all keys of a text; the last token has none yet."""
    marks = TextMarks(len(ids))
    marks.extend(ids)
    return marks.of(0, len(ids) - 1)


@given(ids=IDS, other=IDS, data=st.data())
def test_texts_differ_from_the_first_key_on_whose_token_does(
    ids: list[int], other: list[int], data: st.DataObject
) -> None:
    """Where they begin alike their keys are the same."""
    cut = data.draw(st.integers(0, len(ids)))
    second = ids[:cut] + other
    same = 0
    while same < min(len(ids), len(second)) and ids[same] == second[same]:
        same += 1
    one, two = _marks(ids), _marks(second)
    both = min(len(one), len(two))
    equal = one[:both] == two[:both]
    assert equal[: max(same - 1, 0)].all(), "the key before a token is made with it"
    if same < 1 + both:
        assert not equal[max(same - 1, 0) :].any()


def test_a_token_counts_wherever_it_stands() -> None:
    """Zeros and tokens that change places, too."""
    texts = [[0] * length for length in range(2, 40)]
    texts += [[1, 2, 3, 4], [1, 3, 2, 4], [2, 1, 3, 4], [1, 2, 4, 3]]
    marks = [int(mark) for text in texts[:38] for mark in _marks(text)[-1:]]
    marks += [int(_marks(text)[-1]) for text in texts[38:]]
    assert len({*marks, 0}) == len(texts) + 1, "0: a slot that was never written"


@given(ids=IDS, seed=st.integers(0, 2**32))
def test_a_text_that_grows_has_the_marks_it_has_at_once(ids: list[int], seed: int) -> None:
    draw = random.Random(seed)
    marks = TextMarks(len(ids) + 5)
    known = 0
    while known < len(ids):
        known = draw.randint(known, len(ids))
        marks.extend(ids[:known])
    whole = _marks(ids)
    for start in range(len(ids)):
        end = draw.randint(start, len(ids) - 1)
        assert np.array_equal(marks.of(start, end), whole[start:end])


@given(seed=st.integers(0, 2**32))
def test_a_slot_holds_the_key_of_the_text_that_wrote_it_last(seed: int) -> None:
    """Of a few tokens, so that texts begin alike; against a list of what each slot was written."""
    draw, keys = random.Random(seed), HeadKeys(30)
    held: dict[int, tuple[int, ...]] = {}
    for _ in range(30):
        ids = [draw.randrange(2) for _ in range(draw.randint(2, 9))]
        marks = TextMarks(len(ids))
        marks.extend(ids)
        slots = np.array(draw.sample(range(30), len(ids) - 1))
        wanted = [held.get(int(slot)) == (*ids[: at + 2],) for at, slot in enumerate(slots)]
        assert keys.there(slots, marks.of(0, len(slots))).tolist() == wanted
        start = draw.randrange(len(slots))
        end = draw.randint(start, len(slots))
        keys.wrote(slots[start:end], marks.of(start, end))
        for at in range(start, end):
            held[int(slots[at])] = (*ids[: at + 2],)
