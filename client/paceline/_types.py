"""What the SDK returns: plain frozen values, no protobuf."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

AcceptanceRule = Literal["coupled", "rejection", "typical"]
"""Rule by which drafted tokens are kept; `typical` changes the distribution of the text."""

FinishReason = Literal["stop", "length", "unspecified"]
"""`stop`: an end token, stop token or stop string; `length`: max_tokens or the model's limit."""

TokenSource = Literal["accepted", "recovered", "bonus", "unspecified"]
"""How a token came: drafted and confirmed; the target's own where no draft held; or the target's
own after a draft that held whole."""


@dataclass(frozen=True, kw_only=True)
class Lookahead:
    """Sizes of lookahead decoding for one generation; 0 lets the server choose."""

    window: int = 0
    """W, columns of the window in which the target makes n-grams; at most 64."""
    ngram: int = 0
    """N, tokens of an n-gram; from 2 to 8."""
    guesses: int = 0
    """G, n-grams checked in one pass; at most 64."""


@dataclass(frozen=True)
class Chunk:
    """A piece of a generation.

    Text lags ids where a character or a stop string is not yet decided, so a chunk may have
    either without the other.
    """

    text: str
    """Text that is now certain."""
    token_ids: tuple[int, ...]
    """Ids committed since the last chunk."""
    sources: tuple[TokenSource, ...]
    """How each of `token_ids` came."""
    text_lengths: tuple[int, ...] = ()
    """Characters of `text` that each of `token_ids` made certain."""

    def pieces(self) -> Iterator[tuple[str, TokenSource]]:
        """Splits the text by token: each piece with how its token came.

        Text that was held back to the end belongs to no token here; its source is
        "unspecified".
        """
        start = 0
        for length, source in zip(self.text_lengths, self.sources, strict=True):
            yield self.text[start : start + length], source
            start += length
        if self.text[start:]:
            yield self.text[start:], "unspecified"


@dataclass(frozen=True)
class Usage:
    """Tokens counted."""

    prompt_tokens: int
    """Tokens in the prompt."""
    completion_tokens: int
    """Tokens generated, the end token included."""
    cached_tokens: int
    """Prompt tokens whose key/value cache was already there."""


@dataclass(frozen=True)
class Speculation:
    """What speculation did for one generation."""

    method: str
    """The method that ran."""
    acceptance: str
    """The acceptance rule that ran."""
    rounds: int
    """Target passes that committed tokens."""
    drafted_tokens: int
    """Draft tokens the target checked."""
    accepted_tokens: int
    """Draft tokens committed."""
    accepted_per_position: tuple[int, ...]
    """At index i: rounds in which draft token i was committed."""
    acceptance_rate: float
    """`accepted_tokens / drafted_tokens`; 0.0 where nothing was drafted."""
    mean_accepted_length: float
    """Tokens committed per target pass, bonus included; plain decoding is 1.0."""
    lossy: bool
    """Whether the acceptance rule changes the distribution of the text."""
    accepted_by_method: dict[str, int] = field(default_factory=dict)
    """Draft tokens committed, by the method that proposed them, as far as that is known: after a
    lost gateway or verifier their sum may be less than `accepted_tokens`."""


@dataclass(frozen=True)
class Result:
    """A complete generation."""

    text: str
    """All text, without the stop string."""
    token_ids: tuple[int, ...]
    """All ids, the end token included."""
    finish_reason: FinishReason
    """Why it ended."""
    stop: str | None
    """The stop string that ended it, if one did."""
    usage: Usage
    """Tokens counted."""
    speculation: Speculation
    """What speculation did."""
    seed: int
    """The seed in force: the same one gives the same text again."""
    request_id: str
    """The gateway's id for the request."""
    model: str
    """The model that answered."""


@dataclass(frozen=True)
class Model:
    """A model that a deployment serves."""

    name: str
    """What to give as `model=`."""
    max_model_len: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    """Ids run from 0 to `vocab_size - 1`."""
    methods: tuple[str, ...]
    """Speculation methods on offer."""
    has_tokenizer: bool
    """Whether text can be sent, or token ids only."""
    has_chat_template: bool
    """Whether chat messages can be sent."""
    eos_token_ids: tuple[int, ...]
    """Ids that end a generation."""
