"""Folds the responses of one generation; shared by the sync and the asyncio client."""

from typing import Any, cast

from paceline._types import Chunk, FinishReason, Model, Result, Speculation, TokenSource, Usage
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import types_pb2


class Accumulator:
    """Turns responses into chunks, and all of them into a result."""

    def __init__(self) -> None:
        self._started = pb.GenerationStarted()
        self._complete: pb.GenerationComplete | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] = []

    def add(self, response: pb.GenerateResponse) -> Chunk | None:
        """Takes the next response; returns its chunk if it has one."""
        match response.WhichOneof("event"):
            case "started":
                self._started = response.started
            case "complete":
                self._complete = response.complete
            case "chunk":
                return self._add_chunk(response.chunk)
        return None

    def result(self) -> Result | None:
        """Returns the whole generation, or None if its end was not among the responses."""
        if self._complete is None:
            return None
        end = self._complete
        return Result(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason=cast(
                FinishReason, _name(types_pb2.FinishReason, "FINISH_REASON_", end.finish_reason)
            ),
            stop=end.stop or None,
            usage=Usage(
                prompt_tokens=end.usage.prompt_tokens,
                completion_tokens=end.usage.completion_tokens,
                cached_tokens=end.usage.cached_tokens,
            ),
            speculation=speculation(end.speculation, end.usage.completion_tokens),
            seed=self._started.seed,
            request_id=self._started.request_id,
            model=self._started.model,
        )

    def _add_chunk(self, message: pb.GenerationChunk) -> Chunk:
        self._texts.append(message.text)
        self._token_ids.extend(message.token_ids)
        return Chunk(
            text=message.text,
            token_ids=tuple(message.token_ids),
            sources=tuple(
                cast(TokenSource, _name(types_pb2.TokenSource, "TOKEN_SOURCE_", source))
                for source in message.sources
            ),
            text_lengths=tuple(message.text_lengths),
        )


def speculation(stats: types_pb2.SpeculationStats, completion_tokens: int) -> Speculation:
    """Reads the statistics of a generation and works out its two ratios."""
    drafted, rounds = stats.drafted_tokens, stats.rounds
    return Speculation(
        method=stats.method,
        acceptance=_name(types_pb2.Acceptance, "ACCEPTANCE_", stats.acceptance),
        rounds=rounds,
        drafted_tokens=drafted,
        accepted_tokens=stats.accepted_tokens,
        accepted_per_position=tuple(stats.accepted_per_position),
        acceptance_rate=stats.accepted_tokens / drafted if drafted else 0.0,
        mean_accepted_length=completion_tokens / rounds if rounds else 0.0,
        lossy=stats.lossy,
    )


def models(response: pb.ListModelsResponse) -> list[Model]:
    """Reads a list of models."""
    return [
        Model(
            name=info.name,
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            methods=tuple(info.methods),
            has_tokenizer=info.has_tokenizer,
            has_chat_template=info.has_chat_template,
            eos_token_ids=tuple(info.eos_token_ids),
        )
        for info in response.models
    ]


def _name(enum: Any, prefix: str, number: int) -> str:
    """Spells an enum value as the SDK does; one that a newer server invented is unspecified."""
    if number not in enum.values():
        return "unspecified"
    name: str = enum.Name(number)
    return name.removeprefix(prefix).lower()
