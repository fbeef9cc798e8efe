"""Committed ids to chunks: source and text of each token, cut at stop strings."""

from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import types_pb2

from gateway.detokenizer import Detokenizer
from gateway.request import Chunk, FinishReason, TokenSource
from gateway.transcript import Transcript
from tests.tiny_tokenizers import byte_level

BYTE_LEVEL = byte_level()
A, R, B = TokenSource.ACCEPTED, TokenSource.RECOVERED, TokenSource.BONUS


def test_numbers_are_those_of_the_wire() -> None:
    for ours, prefix, wire in (
        (TokenSource, "TOKEN_SOURCE_", types_pb2.TokenSource),
        (FinishReason, "FINISH_REASON_", types_pb2.FinishReason),
    ):
        assert {prefix + each.name: each.value for each in ours} == dict(wire.items())


def test_a_message_says_how_each_token_came_and_what_text_it_made_certain() -> None:
    ids = BYTE_LEVEL.encode("ab é!")
    sources = [A] * (len(ids) - 1) + [B]
    chunk = Transcript(Detokenizer(BYTE_LEVEL), ()).feed(ids, sources)
    assert (chunk.text, chunk.ids, chunk.sources) == ("ab é!", ids, sources)
    assert len(chunk.lengths) == len(ids)
    assert sum(chunk.lengths) == len(chunk.text)


def test_without_a_tokenizer_there_are_ids_only() -> None:
    chunk = Transcript(None, ()).feed([5, 6, 7], [A, A, R])
    assert chunk == Chunk("", [5, 6, 7], [A, A, R], [0, 0, 0])


def test_a_stop_string_ends_ids_with_the_token_that_completed_it() -> None:
    ids = BYTE_LEVEL.encode("one END two")
    transcript = Transcript(Detokenizer(BYTE_LEVEL), ["END"])
    chunks = [transcript.feed([id_], [R]) for id_ in ids if transcript.stop is None]
    assert "".join(chunk.text for chunk in chunks) == "one "
    assert transcript.stop == "END"
    assert transcript.finish() == ""
    told = [id_ for chunk in chunks for id_ in chunk.ids]
    assert BYTE_LEVEL.decode(told) == "one END"
    assert transcript.tokens == len(told)


def test_a_stop_string_inside_a_run_cuts_the_message() -> None:
    ids = BYTE_LEVEL.encode("xENDyy")
    transcript = Transcript(Detokenizer(BYTE_LEVEL), ["END"])
    chunk = transcript.feed(ids, [A] * 5 + [B])
    assert (chunk.text, list(chunk.ids)) == ("x", ids[:4])
    assert transcript.tokens == 4


@given(st.text("abEN", max_size=30), st.data())
def test_text_is_complete_without_a_hit(text, data) -> None:
    ids = BYTE_LEVEL.encode(text)
    transcript = Transcript(Detokenizer(BYTE_LEVEL), ["END"])
    out = "".join(transcript.feed([id_], [R]).text for id_ in ids)
    assert out + transcript.finish() == text
