"""The pointer that follows a repeat, and how long texts are indexed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.ngrams import Contexts
from verifier.pool.index import TextIndex
from verifier.pool.match import LEAST, Match

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(ids=TEXTS)
def test_the_pointer_stands_behind_the_same_tokens(ids: list[int]) -> None:
    match = Match()
    for end in range(1, len(ids) + 1):
        match.extend(ids[:end], end - 1)
        line = list(match.continuation(ids[:end], 5))
        if not line:
            continue
        assert len(line) == 5
        places = [
            place
            for place in range(match.length, end)
            if ids[place - match.length : place] == ids[end - match.length : end]
            and ids[place:end][:5] == line[: end - place]
        ]
        assert places, "some earlier place has these tokens before it and the line after it"


def test_a_copy_is_followed_and_an_exchanged_token_passed_over() -> None:
    draw = random.Random(0)
    text = [draw.randrange(1000) for _ in range(60)]
    match = Match()
    ids = [*text, *text[:20]]
    match.extend(ids, 0)
    assert match.length == 20
    assert list(match.continuation(ids, 8)) == text[20:28]
    ids.append(5000)
    match.extend(ids, 80)
    assert match.length == 0
    assert list(match.continuation(ids, 8)) == text[21:29]
    ids.append(5001)
    match.extend(ids, 81)
    assert list(match.continuation(ids, 8)) == []


@pytest.mark.parametrize("vocabulary", [3, 1000])
@pytest.mark.parametrize("length", [*range(62, 74), 300])
def test_a_text_in_one_piece_is_known_as_token_by_token(length: int, vocabulary: int) -> None:
    """Whatever was known before it."""
    draw = random.Random(length)
    for known in range(8):
        ids = [draw.randrange(vocabulary) for _ in range(known + length)]
        ids += ids[known + 5 : known + 50]
        whole, bit_by_bit = Match(), Match()
        for match in (whole, bit_by_bit):
            match.extend(ids[:known], 0)
        whole.extend(ids, known)
        for end in range(known + 1, len(ids) + 1):
            bit_by_bit.extend(ids[:end], end - 1)
        assert whole._places == bit_by_bit._places
        place, agreed = whole._pointer, whole.length
        assert agreed >= LEAST
        assert ids[place - agreed : place] == ids[-agreed:]
        if vocabulary == 1000:
            assert agreed == bit_by_bit.length == 45
            assert place == bit_by_bit._pointer == known + 50


def test_places_of_long_texts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.pool.match._MOST_PLACES", 100)
    match = Match()
    for end in range(200, 3000, 200):
        match.extend(range(end), end - 200)
        assert len(match._places) + len(match._older) <= 2 * (100 + 200)


@pytest.mark.parametrize("period", [1, 2, 5])
def test_a_text_that_repeats_itself_is_expected_to_go_on(period: int) -> None:
    ids = [7 + index % period for index in range(3 * period + 2 * LEAST)]
    match = Match()
    match.extend(ids, 0)
    expected = [7 + (len(ids) + index) % period for index in range(12)]
    assert list(match.continuation(ids, 12)) == expected


def test_a_long_text_is_indexed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.pool.index._MOST_TOKENS", 10)
    contexts = Contexts(2)
    index = TextIndex(contexts, start=4)
    ids = list(range(30))
    assert not index.catch_up(ids)
    assert contexts.followers((10,)) == {11: 1.0}
    assert contexts.followers((20,)) is None
    assert not index.catch_up(ids)
    assert index.catch_up(ids)
    assert contexts.followers((28,)) == {29: 1.0}
    assert contexts.followers((2,)) is None, "before the start"
