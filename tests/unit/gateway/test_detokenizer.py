"""Incremental text equals the text of all ids, and is never half a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.tokenizer import Tokenizer
from gateway.detokenizer import Detokenizer
from tests.tiny_tokenizers import WORDS, byte_fallback, byte_level, metaspace

BYTE_LEVEL, BYTE_FALLBACK, METASPACE = byte_level(), byte_fallback(), metaspace()


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def ids_below(size: int, most: int = 80) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, size - 1), max_size=most)


@given(ids_below(263))
def test_byte_level_random_ids(ids) -> None:
    assert "".join(pieces_of(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)


@given(st.text(max_size=40))
def test_byte_level_text_comes_in_whole_characters(text) -> None:
    ids = BYTE_LEVEL.encode(text)
    pieces = pieces_of(BYTE_LEVEL, ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


# Two ids more than the tokenizer has: models pad their vocabulary.
@given(ids_below(len(WORDS) + 4))
def test_leading_spaces_metaspace(ids) -> None:
    assert "".join(pieces_of(METASPACE, ids)) == METASPACE.decode(ids)


words_or_silent = st.one_of(st.just(0), st.integers(258, 259 + len(WORDS)))
characters = st.characters(exclude_categories=["Cs"]).map(
    lambda character: [2 + byte for byte in character.encode()]
)


@given(st.lists(st.one_of(words_or_silent.map(lambda id_: [id_]), characters), max_size=60))
def test_byte_fallback_with_valid_characters(groups) -> None:
    ids = [id_ for group in groups for id_ in group]
    assert "".join(pieces_of(BYTE_FALLBACK, ids)) == BYTE_FALLBACK.decode(ids)


def test_byte_fallback_keeps_what_was_handed_out_when_the_run_turns_invalid() -> None:
    ids = [*(2 + byte for byte in "é".encode()), 2 + 0x80, 258 + WORDS.index("▁cat")]
    assert BYTE_FALLBACK.decode(ids) == "\ufffd\ufffd\ufffd cat"
    assert "".join(pieces_of(BYTE_FALLBACK, ids)) == "é\ufffd\ufffd cat"


@settings(max_examples=50)
@given(ids_below(4096, most=200))
def test_the_demo_model(demo, ids) -> None:
    assert "".join(pieces_of(demo, ids)) == demo.decode(ids)


@pytest.fixture(scope="module")
def demo(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = Tokenizer.load(request.getfixturevalue("demo_target"))
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("tokenizer", [BYTE_FALLBACK, METASPACE], ids=["fallback", "metaspace"])
def test_ids_without_text_cost_no_leading_space(tokenizer) -> None:
    word = tokenizer._backend.token_to_id("▁the")
    for silent in (0, 5000):  # a special token, and an id beyond the tokenizer's
        for before in range(40):  # wherever the window is cut
            ids = [word] * before + [silent, silent, word]
            assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def test_an_emoji_waits_for_its_last_byte() -> None:
    ids = BYTE_LEVEL.encode("😀")
    pieces = pieces_of(BYTE_LEVEL, ids)
    assert [piece for piece in pieces if piece] == ["😀"]
    assert pieces_of(BYTE_LEVEL, ids[:-1])[-1] == "\ufffd"


def test_endless_nonsense_is_let_go() -> None:
    bad = BYTE_LEVEL.encode("é")[-1]
    detokenizer, out = Detokenizer(BYTE_LEVEL), 0
    for _ in range(3000):
        out += len(detokenizer.push(bad))
        assert len(detokenizer._window) <= 1100
    assert out + len(detokenizer.flush()) == 3000


@pytest.mark.parametrize("tokenizer", [BYTE_FALLBACK, METASPACE], ids=["fallback", "metaspace"])
def test_the_window_stays_short_whatever_comes_again_and_again(tokenizer) -> None:
    for word in WORDS:  # a lone space, too, which is no text where a window begins with it
        detokenizer = Detokenizer(tokenizer)
        for _ in range(100):
            detokenizer.push(tokenizer._backend.token_to_id(word))
            assert len(detokenizer._window) < 20, word
