"""The public protobuf messages to the gateway's own dataclasses and back."""

from __future__ import annotations

import dataclasses
import secrets
import time
import uuid
from collections.abc import Sequence

from google.protobuf.message import Message
from paceline.v1 import inference_pb2, types_pb2

from common.errors import InvalidArgument
from common.rpc.convert import (
    acceptance_from_proto,
    acceptance_to_proto,
    lookahead_from_proto,
    sampling_from_proto,
)
from common.sampling_params import SamplingParams
from gateway.model import Model
from gateway.request import (
    Ask,
    Chunk,
    Complete,
    Event,
    Prompt,
    Resume,
    Speculation,
    Started,
    Usage,
)

# Encoding takes some 120 bytes of memory for each one of text, of one text at a time, and the
# gateway is to stay under 300 MB; this is still some 250,000 tokens of text, or 350,000 ids.
MAX_REQUEST_BYTES = 1 << 20

# What a client adds to a request that is resumed: id, model and seed, as they were told.
_TOLD_BYTES = 1024

# An empty turn takes two bytes on the wire and a hundred times as much here.
MAX_TURNS = 4096

_SEED_BITS = 53
"""Of seeds drawn here: numbers that every reader of JSON keeps as they are."""


def check_size(message: Message) -> None:
    """Raises InvalidArgument where a request is too large; what Resume holds does not count."""
    size = message.ByteSize()
    if isinstance(message, inference_pb2.GenerateRequest) and message.HasField("resume"):
        size -= message.resume.ByteSize() + _TOLD_BYTES
    if size > MAX_REQUEST_BYTES:
        problem = f"must have at most {MAX_REQUEST_BYTES} bytes, got {size}"
        raise InvalidArgument("request", problem)


def ask_from_proto(message: inference_pb2.GenerateRequest) -> Ask:
    """Reads a request; draws the seed and the request id, and looks at the clock, where the client
    gave none.

    Raises:
        InvalidArgument: The acceptance rule is unknown, there are too many turns to read, or a
            generation is to be resumed without its seed or its numerics.
    """
    return Ask(
        request_id=message.request_id or uuid.uuid4().hex,
        model=message.model,
        prompt=prompt_from_proto(message, message.resume.prompt_time_s or int(time.time())),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        sampling=_sampling(message),
        method=message.speculation.method or "auto",
        draft_tokens=message.speculation.draft_tokens,
        acceptance=acceptance_from_proto(message.speculation.acceptance),
        stop=message.stop,
        stop_token_ids=message.stop_token_ids,
        ignore_eos=message.ignore_eos,
        session_id=message.session_id,
        resume=_resume(message.resume) if message.HasField("resume") else None,
        lookahead=lookahead_from_proto(message.speculation.lookahead),
    )


def prompt_from_proto(
    message: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest,
    time_s: int | None = None,
) -> Prompt:
    """Reads whichever form of input is set; none leaves the prompt without a form.

    Args:
        message: The request.
        time_s: What a chat template is told that asks for the time; see `Prompt`.

    Raises:
        InvalidArgument: There are too many turns to read.
    """
    form = message.WhichOneof("input")
    if form == "text":
        return Prompt(text=message.text)
    if form == "chat":
        turns = message.chat.messages
        if len(turns) > MAX_TURNS:
            problem = f"must be at most {MAX_TURNS} turns, got {len(turns)}"
            raise InvalidArgument("chat.messages", problem)
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        return Prompt(messages=messages, time_s=time_s)
    if isinstance(message, inference_pb2.GenerateRequest) and form == "token_ids":
        return Prompt(token_ids=message.token_ids.ids)
    return Prompt()


def events_to_proto(events: Sequence[Event]) -> inference_pb2.GenerateResponse:
    """Writes one message of a generation."""
    response = inference_pb2.GenerateResponse()
    for event in events:
        if isinstance(event, Chunk):
            _fill(response.chunk, event)
        elif isinstance(event, Started):
            response.started.CopyFrom(_started(event))
        else:
            response.complete.CopyFrom(_complete(event))
    return response


def models_to_proto(models: Sequence[Model]) -> inference_pb2.ListModelsResponse:
    """Writes the list of models."""
    return inference_pb2.ListModelsResponse(models=[_model(model) for model in models])


def _sampling(message: inference_pb2.GenerateRequest) -> SamplingParams:
    params = sampling_from_proto(message.sampling)
    if message.sampling.HasField("seed"):
        return params
    if message.HasField("resume"):
        raise InvalidArgument("sampling.seed", "must come with resume: the one that was told")
    return dataclasses.replace(params, seed=secrets.randbits(_SEED_BITS))


def _resume(message: inference_pb2.Resume) -> Resume:
    if not message.numerics:
        raise InvalidArgument("resume.numerics", "must be the one that was told, got none")
    return Resume(
        ids=message.token_ids,
        sources=message.sources,
        rounds=message.rounds,
        drafted_tokens=message.drafted_tokens,
        numerics=message.numerics,
        prompt_digest=message.prompt_digest,
    )


def _fill(chunk: inference_pb2.GenerationChunk, event: Chunk) -> None:
    chunk.text = event.text
    chunk.token_ids.extend(event.ids)
    chunk.sources.extend(event.sources)  # type: ignore[arg-type]
    chunk.text_lengths.extend(event.lengths)
    chunk.rounds = event.rounds
    chunk.drafted_tokens = event.drafted_tokens


def _started(event: Started) -> inference_pb2.GenerationStarted:
    return inference_pb2.GenerationStarted(
        request_id=event.request_id,
        model=event.model,
        seed=event.seed,
        prompt_tokens=event.prompt_tokens,
        numerics=event.numerics,
        resumed_tokens=event.resumed_tokens,
        prompt_digest=event.prompt_digest,
        prompt_time_s=event.prompt_time_s,
    )


def _complete(event: Complete) -> inference_pb2.GenerationComplete:
    return inference_pb2.GenerationComplete(
        finish_reason=event.finish_reason,  # type: ignore[arg-type]
        usage=_usage(event.usage),
        speculation=_speculation(event.speculation),
        stop=event.stop,
    )


def _usage(usage: Usage) -> types_pb2.Usage:
    return types_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )


def _speculation(stats: Speculation) -> types_pb2.SpeculationStats:
    return types_pb2.SpeculationStats(
        method=stats.method,
        acceptance=acceptance_to_proto(stats.acceptance),
        rounds=stats.rounds,
        drafted_tokens=stats.drafted_tokens,
        accepted_tokens=stats.accepted_tokens,
        accepted_per_position=stats.accepted_per_position,
        lossy=stats.lossy,
        accepted_by_method=stats.accepted_by_method,
    )


def _model(model: Model) -> inference_pb2.ModelInfo:
    return inference_pb2.ModelInfo(
        name=model.name,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        methods=model.methods,
        has_tokenizer=model.tokenizer is not None,
        has_chat_template=model.has_chat_template,
        eos_token_ids=model.eos_token_ids,
    )
