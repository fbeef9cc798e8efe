"""Protobuf to the engine's dataclasses and back."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.v1 import types_pb2, verifier_pb2

from common.errors import InvalidArgument
from common.model.kv_cache import MAX_SALT_BYTES
from common.rpc.convert import (
    LOSSY,
    acceptance_from_proto,
    acceptance_to_proto,
    lookahead_from_proto,
    sampling_from_proto,
)
from verifier.sequence import Counts, Event, FinishReason, Request, Source

_SOURCES = {
    Source.ACCEPTED: types_pb2.TOKEN_SOURCE_ACCEPTED,
    Source.RECOVERED: types_pb2.TOKEN_SOURCE_RECOVERED,
    Source.BONUS: types_pb2.TOKEN_SOURCE_BONUS,
}
_FINISHES = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
}

MOST_SESSION_CHARS = 128


def check_length(field: str, value: str | bytes, most: int) -> None:
    """Raises InvalidArgument where a value is longer than `most`."""
    if len(value) > most:
        raise InvalidArgument(field, f"must be at most {most} long, got {len(value)}")


def request_from_proto(
    message: verifier_pb2.VerifierGenerateRequest, eos: Sequence[int]
) -> Request:
    """Reads a request.

    Args:
        message: As it came.
        eos: Ids that end the model's texts.

    Raises:
        InvalidArgument: The acceptance rule is unknown, or a key or salt is too long.
    """
    check_length("session", message.session, MOST_SESSION_CHARS)
    check_length("cache_salt", message.cache_salt, MAX_SALT_BYTES)
    stops = frozenset(message.stop_token_ids)
    return Request(
        request_id=message.request_id,
        prompt_ids=tuple(message.prompt_ids),
        max_tokens=message.max_tokens,
        sampling=sampling_from_proto(message.sampling),
        method=message.speculation.method or "auto",
        acceptance=acceptance_from_proto(message.speculation.acceptance),
        draft_tokens=message.speculation.draft_tokens,
        lookahead=lookahead_from_proto(message.speculation.lookahead),
        stop_ids=stops if message.ignore_eos else stops.union(eos),
        drafters=tuple(drafter.address for drafter in message.drafters),
        cache_salt=message.cache_salt,
    )


def tokens_to_proto(events: Sequence[Event]) -> verifier_pb2.CommittedTokens:
    """Writes the tokens of consecutive events, with the last one's counts."""
    counts = events[-1].counts
    assert counts is not None, "only errors come without"
    return verifier_pb2.CommittedTokens(
        ids=[token for event in events for token in event.ids],
        sources=[_SOURCES[source] for event in events for source in event.sources],
        rounds=counts.rounds,
        drafted_tokens=counts.drafted_tokens,
        cached_tokens=counts.cached_tokens,
        method=counts.method,
    )


def complete_to_proto(
    request: Request, finish: FinishReason, counts: Counts, output_tokens: int
) -> verifier_pb2.VerifierComplete:
    """Writes the end of a generation."""
    return verifier_pb2.VerifierComplete(
        finish_reason=_FINISHES[finish],
        usage=types_pb2.Usage(
            prompt_tokens=len(request.prompt_ids),
            completion_tokens=output_tokens,
            cached_tokens=counts.cached_tokens,
        ),
        speculation=types_pb2.SpeculationStats(
            method=counts.method,
            acceptance=acceptance_to_proto(request.acceptance),
            rounds=counts.rounds,
            drafted_tokens=counts.drafted_tokens,
            accepted_tokens=counts.accepted_tokens,
            accepted_per_position=counts.accepted_per_position,
            lossy=request.acceptance in LOSSY,
            accepted_by_method=counts.accepted_by_method,
        ),
    )
