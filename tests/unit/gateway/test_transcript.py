"""Committed ids to chunks: one source each, cut at stop strings, honestly counted."""

from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import types_pb2

from gateway.detokenizer import Detokenizer
from gateway.request import Chunk, FinishReason, TokenSource
from gateway.transcript import Tally, Transcript
from tests.tiny_tokenizers import byte_level

BYTE_LEVEL = byte_level()
A, R, B = TokenSource.ACCEPTED, TokenSource.RECOVERED, TokenSource.BONUS


def test_numbers_are_those_of_the_wire() -> None:
    for ours, prefix, wire in (
        (TokenSource, "TOKEN_SOURCE_", types_pb2.TokenSource),
        (FinishReason, "FINISH_REASON_", types_pb2.FinishReason),
    ):
        assert {prefix + each.name: each.value for each in ours} == dict(wire.items())


def test_a_message_is_split_into_runs_of_one_source() -> None:
    transcript = Transcript(None, ())
    chunks = list(transcript.feed([5, 6, 7, 8], [A, A, R, A]))
    assert chunks == [Chunk("", [5, 6], A), Chunk("", [7], R), Chunk("", [8], A)]


def test_a_stop_string_ends_ids_with_the_token_that_completed_it() -> None:
    ids = BYTE_LEVEL.encode("one END two")
    transcript = Transcript(Detokenizer(BYTE_LEVEL), ["END"])
    chunks = [c for id_ in ids for c in transcript.feed([id_], [R])]
    assert "".join(chunk.text for chunk in chunks) == "one "
    assert transcript.stop == "END"
    assert transcript.finish() == ""
    told = [id_ for chunk in chunks for id_ in chunk.ids]
    assert BYTE_LEVEL.decode(told) == "one END"
    assert transcript.tally.tokens == len(told)


def test_a_stop_string_inside_a_run_cuts_the_message() -> None:
    ids = BYTE_LEVEL.encode("xENDyy")
    transcript = Transcript(Detokenizer(BYTE_LEVEL), ["END"])
    chunks = list(transcript.feed(ids, [A] * 5 + [B]))
    assert [(chunk.text, list(chunk.ids)) for chunk in chunks] == [("x", ids[:4])]
    assert (transcript.tally.rounds, transcript.tally.accepted) == (1, 4)


@given(st.text("abEN", max_size=30), st.data())
def test_text_is_complete_without_a_hit(text, data) -> None:
    ids = BYTE_LEVEL.encode(text)
    transcript = Transcript(Detokenizer(BYTE_LEVEL), ["END"])
    out = "".join(chunk.text for id_ in ids for chunk in transcript.feed([id_], [R]))
    assert out + transcript.finish() == text


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([R, B])), max_size=20))
def test_the_tally_equals_a_count_by_rounds(rounds) -> None:
    tally = Tally()
    for accepted, last in rounds:
        tally.add(A, accepted) if accepted else None
        tally.add(last, 1)
    assert tally.rounds == len(rounds)
    assert tally.accepted == sum(accepted for accepted, _ in rounds)
    assert tally.tokens == tally.accepted + len(rounds)
    expected = [sum(accepted > i for accepted, _ in rounds) for i in range(4)]
    assert tally.accepted_per_position == [count for count in expected if count]


def test_a_round_cut_short_counts() -> None:
    tally = Tally()
    tally.add(R, 1)
    tally.add(A, 2)
    assert tally.rounds == 2
