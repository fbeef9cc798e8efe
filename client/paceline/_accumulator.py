"""Folds the responses of one generation; shared by the sync and the asyncio client."""

from typing import Any, cast

from paceline._types import Chunk, FinishReason, Model, Result, Speculation, TokenSource, Usage
from paceline.errors import UnimplementedError
from paceline.v1 import inference_pb2 as pb
from paceline.v1 import types_pb2


def _names(enum: Any, prefix: str) -> dict[int, str]:
    """Spells an enum's values as the SDK does."""
    return {number: name.removeprefix(prefix).lower() for name, number in enum.items()}


_FINISH_REASONS = _names(types_pb2.FinishReason, "FINISH_REASON_")
_TOKEN_SOURCES = _names(types_pb2.TokenSource, "TOKEN_SOURCE_")
_ACCEPTANCES = _names(types_pb2.Acceptance, "ACCEPTANCE_")
_UNKNOWN = "unspecified"  # of a newer server


class Accumulator:
    """Turns responses into chunks, and all of them into a result.

    Attributes:
        begun: Whether a gateway has taken the request.
        responses: How many came that tell more of the text; one that takes the request on does not.
    """

    def __init__(self) -> None:
        self.begun = False
        self.responses = 0
        self._started = pb.GenerationStarted()
        self._complete: pb.GenerationComplete | None = None
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._sources: list[types_pb2.TokenSource] = []
        self._rounds = self._drafted_tokens = 0
        self._idless = 0  # characters that came without ids, at the end
        self._skip = 0  # of them, what a resumed stream will repeat

    def add(self, response: pb.GenerateResponse) -> Chunk | None:
        """Takes the next response; returns its chunk if it has one.

        Raises:
            UnimplementedError: A stream that was to be resumed begins anew.
        """
        if response.HasField("started"):
            self._start(response.started)
        if response.HasField("complete"):
            self._complete = response.complete
        more = response.HasField("chunk")
        self.responses += more or self._complete is not None
        return self._add_chunk(response.chunk) if more else None

    def result(self) -> Result | None:
        """Returns the whole generation, or None if its end was not among the responses."""
        if self._complete is None:
            return None
        end = self._complete
        return Result(
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            finish_reason=cast(FinishReason, _FINISH_REASONS.get(end.finish_reason, _UNKNOWN)),
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

    def describe(self, request: pb.GenerateRequest) -> None:
        """Writes what was received into a request for the rest; what is added from then on is."""
        request.request_id = self._started.request_id
        request.model = self._started.model
        request.sampling.seed = self._started.seed
        request.resume.CopyFrom(
            pb.Resume(
                token_ids=self._token_ids,
                sources=self._sources,
                rounds=self._rounds,
                drafted_tokens=self._drafted_tokens,
                numerics=self._started.numerics,
                prompt_digest=self._started.prompt_digest,
                prompt_time_s=self._started.prompt_time_s,
            )
        )
        self._skip = self._idless

    def _start(self, started: pb.GenerationStarted) -> None:
        if started.resumed_tokens != len(self._token_ids):
            raise UnimplementedError("this gateway does not resume generations")
        if not self._token_ids:  # else what came goes on from the prompt that was told first
            self._started = started
        self.begun = True

    def _add_chunk(self, message: pb.GenerationChunk) -> Chunk | None:
        text = message.text[self._skip :]
        self._skip -= len(message.text) - len(text)
        if not message.token_ids:
            if not text and message.text:
                return None  # all of it came before the gateway was lost
            self._idless += len(text)
        self._texts.append(text)
        self._token_ids.extend(message.token_ids)
        self._sources.extend(message.sources)
        self._rounds, self._drafted_tokens = message.rounds, message.drafted_tokens
        return Chunk(
            text=text,
            token_ids=tuple(message.token_ids),
            sources=tuple(
                cast(TokenSource, _TOKEN_SOURCES.get(source, _UNKNOWN))
                for source in message.sources
            ),
            text_lengths=tuple(message.text_lengths),
        )


def speculation(stats: types_pb2.SpeculationStats, completion_tokens: int) -> Speculation:
    """Reads the statistics of a generation and works out its two ratios."""
    drafted, rounds = stats.drafted_tokens, stats.rounds
    return Speculation(
        method=stats.method,
        acceptance=_ACCEPTANCES.get(stats.acceptance, _UNKNOWN),
        rounds=rounds,
        drafted_tokens=drafted,
        accepted_tokens=stats.accepted_tokens,
        accepted_per_position=tuple(stats.accepted_per_position),
        acceptance_rate=stats.accepted_tokens / drafted if drafted else 0.0,
        mean_accepted_length=completion_tokens / rounds if rounds else 0.0,
        lossy=stats.lossy,
        accepted_by_method=dict(stats.accepted_by_method),
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
