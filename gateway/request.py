"""A generation as the gateway sees it, free of protobuf: what is asked and what is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from common.lookahead_sizes import LookaheadSizes
from common.sampling_params import SamplingParams


class TokenSource(IntEnum):
    """How a token came to be; the numbers are those of the wire."""

    UNSPECIFIED = 0
    ACCEPTED = 1
    RECOVERED = 2
    BONUS = 3


class FinishReason(IntEnum):
    """Why a generation ended; the numbers are those of the wire."""

    UNSPECIFIED = 0
    STOP = 1
    LENGTH = 2

    @classmethod
    def _missing_(cls, value: object) -> FinishReason:
        return cls.UNSPECIFIED  # a newer verifier's


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt in one of its three forms; exactly one is set.

    Attributes:
        text: Plain text.
        token_ids: Ids as they are.
        messages: Turns of a conversation, each with role and content.
        time_s: What their template is told where it asks for the time, in seconds since 1970; None
            for the present.
    """

    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, str]] | None = None
    time_s: int | None = None

    @property
    def field(self) -> str:
        """The request's field that holds it, for error messages."""
        if self.text is not None:
            return "text"
        return "token_ids" if self.token_ids is not None else "chat.messages"

    @property
    def chars(self) -> int:
        """Characters to be encoded, without what a chat template adds."""
        if self.messages is not None:
            return sum(len(part) for turn in self.messages for part in turn.values())
        return len(self.text or "")


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What a client has of a generation that another gateway began.

    Attributes:
        ids: Ids it has received.
        sources: `TokenSource` of each of them.
        rounds: Target passes up to them.
        drafted_tokens: Draft tokens checked up to them.
        numerics: Fingerprint of the verifiers that wrote them.
        prompt_digest: Of the prompt that they follow; empty where it is not known.
    """

    ids: Sequence[int] = ()
    sources: Sequence[int] = ()
    rounds: int = 0
    drafted_tokens: int = 0
    numerics: str = ""
    prompt_digest: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A client's request, the seed drawn if it gave none.

    Attributes are those of `GenerateRequest`; `max_tokens` None means the room that is left,
    and `method` is "auto" where the client said nothing.
    """

    request_id: str
    model: str
    prompt: Prompt
    max_tokens: int | None
    sampling: SamplingParams
    method: str
    draft_tokens: int
    acceptance: str
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    session_id: str
    resume: Resume | None = None
    lookahead: LookaheadSizes = field(default_factory=LookaheadSizes)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a verifier is asked for: a checked request in ids."""

    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    method: str
    draft_tokens: int
    acceptance: str
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    drafters: tuple[str, ...]
    session: str = ""
    epoch: int = 0
    cache_salt: bytes = b""
    numerics: str = ""
    lookahead: LookaheadSizes = field(default_factory=LookaheadSizes)


@dataclass(frozen=True, kw_only=True)
class Started:
    """The request is sound and has its place."""

    request_id: str
    model: str
    seed: int
    prompt_tokens: int
    numerics: str
    resumed_tokens: int = 0
    prompt_digest: bytes = b""
    prompt_time_s: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """More of the text.

    Attributes:
        text: Text that is now certain.
        ids: Ids committed since the last chunk.
        sources: `TokenSource` of each of them.
        lengths: Characters of `text` that each of them made certain.
        rounds: Target passes so far.
        drafted_tokens: Draft tokens checked so far.
    """

    text: str = ""
    ids: Sequence[int] = ()
    sources: Sequence[int] = ()
    lengths: Sequence[int] = ()
    rounds: int = 0
    drafted_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens counted."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """What speculation did; fields as in `SpeculationStats`."""

    method: str
    acceptance: str
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]
    lossy: bool = False
    accepted_by_method: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Complete:
    """The end of a generation.

    Attributes:
        finish_reason: A `FinishReason`.
        usage: Tokens counted.
        speculation: What speculation did.
        stop: The stop string that ended it, or "".
    """

    finish_reason: int
    usage: Usage
    speculation: Speculation
    stop: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens a verifier committed, and the end where they are the last.

    Attributes:
        ids: Ids committed since the last message; none where only the end is told.
        sources: `TokenSource` of each of them.
        rounds: Target passes so far.
        drafted_tokens: Draft tokens checked so far.
        cached_tokens: Prompt tokens that were cached already.
        method: What ran; empty where the verifier does not say.
        end: How the generation ended; None while it goes on.
    """

    ids: Sequence[int] = ()
    sources: Sequence[int] = ()
    rounds: int = 0
    drafted_tokens: int = 0
    cached_tokens: int = 0
    method: str = ""
    end: Complete | None = None


Event = Started | Chunk | Complete
