"""Responses are folded into chunks and a result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline._accumulator import Accumulator, models, speculation
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import types_pb2

PIECES = st.lists(st.tuples(st.text(), st.lists(st.integers(0, 2**32 - 1))))


def chunk(text: str, ids: list[int], sources: list[int] | None = None) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        chunk=pb.GenerationChunk(text=text, token_ids=ids, sources=sources or [1] * len(ids))
    )


@given(pieces=PIECES)
def test_the_result_is_the_chunks_put_together(pieces: list[tuple[str, list[int]]]) -> None:
    folded = Accumulator()
    chunks = [folded.add(chunk(text, ids)) for text, ids in pieces]
    assert folded.result() is None
    folded.add(pb.GenerateResponse(complete=pb.GenerationComplete()))
    result = folded.result()
    assert result is not None
    assert result.text == "".join(c.text for c in chunks if c)
    assert result.token_ids == tuple(i for c in chunks if c for i in c.token_ids)


def test_only_chunks_are_given_out() -> None:
    folded = Accumulator()
    started = pb.GenerationStarted(request_id="r", model="m", seed=3)
    assert folded.add(pb.GenerateResponse(started=started)) is None
    end = pb.GenerationComplete(finish_reason=types_pb2.FINISH_REASON_STOP, stop="###")
    assert folded.add(pb.GenerateResponse(complete=end)) is None
    result = folded.result()
    assert result is not None
    assert (result.request_id, result.model, result.seed) == ("r", "m", 3)
    assert (result.finish_reason, result.stop) == ("stop", "###")


def test_sources_are_words_and_one_from_the_future_is_unspecified() -> None:
    folded = Accumulator().add(chunk("x", [1, 2, 3, 4, 5], [1, 2, 3, 0, 99]))
    assert folded is not None
    assert folded.sources == ("accepted", "recovered", "bonus", "unspecified", "unspecified")


def test_an_event_from_the_future_is_passed_over() -> None:
    assert Accumulator().add(pb.GenerateResponse()) is None


@pytest.mark.parametrize(
    ("drafted", "accepted", "rounds", "tokens", "rate", "length"),
    [
        (0, 0, 10, 10, 0.0, 1.0),  # plain decoding
        (8, 6, 2, 8, 0.75, 4.0),
        (4, 0, 1, 1, 0.0, 1.0),
        (0, 0, 0, 0, 0.0, 0.0),
    ],
)
def test_ratios(
    drafted: int, accepted: int, rounds: int, tokens: int, rate: float, length: float
) -> None:
    stats = types_pb2.SpeculationStats(
        drafted_tokens=drafted, accepted_tokens=accepted, rounds=rounds, acceptance=3, lossy=True
    )
    read = speculation(stats, tokens)
    assert (read.acceptance_rate, read.mean_accepted_length) == (rate, length)
    assert (read.acceptance, read.lossy) == ("typical", True)


def test_models_are_read_whole() -> None:
    info = pb.ModelInfo(
        name="m",
        max_model_len=10,
        vocab_size=20,
        methods=["plain"],
        has_tokenizer=True,
        has_chat_template=True,
        eos_token_ids=[1, 2],
    )
    (model,) = models(pb.ListModelsResponse(models=[info]))
    assert (model.name, model.max_model_len, model.vocab_size) == ("m", 10, 20)
    assert (model.methods, model.eos_token_ids) == (("plain",), (1, 2))
    assert model.has_tokenizer
    assert model.has_chat_template
