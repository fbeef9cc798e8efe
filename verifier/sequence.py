"""One request inside the engine: what was asked, the committed tokens, their cache, the counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from common.drafters import MOST_DRAFTERS
from common.errors import FailedPrecondition, InvalidArgument, PacelineError
from common.lookahead_sizes import LookaheadSizes
from common.model.kv_cache import KvLease
from common.model.seen import mark, seen
from common.sampling_params import SamplingParams
from common.telemetry.span import SpanIds
from verifier.round_times import RoundTimes, Stopwatch
from verifier.totals import Drafts


class Source(Enum):
    """How a committed token came to be."""

    ACCEPTED = "accepted"
    """Drafted, and confirmed by the target."""
    RECOVERED = "recovered"
    """The target's own, where it disagreed with the draft or there was none."""
    BONUS = "bonus"
    """The target's own, after a draft that was accepted whole."""


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    """The model's end token or one of the request's stop tokens."""
    LENGTH = "length"
    """max_tokens."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to generate."""

    request_id: str
    """For logs."""
    prompt_ids: tuple[int, ...]
    """Never empty, and none below 0: the wire, and tokenizers, know no such ids."""
    max_tokens: int
    """Most tokens to generate; at least 1."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are chosen."""
    method: str = "plain"
    """Which proposer drafts; "auto" leaves it to the engine."""
    acceptance: str = "coupled"
    """Which rule keeps draft tokens."""
    draft_tokens: int = 0
    """Most draft tokens of a round; 0 leaves it to the engine."""
    lookahead: LookaheadSizes = field(default_factory=LookaheadSizes)
    """Sizes of lookahead decoding, where the method has it."""
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the text, the model's own included."""
    drafters: tuple[str, ...] = ()
    """Addresses of drafters to pair with, best first."""
    cache_salt: bytes = b""
    """Requests with different ones share no cached prefix."""
    timed: bool = False
    """Whether events tell how long the parts of a round took."""
    span: SpanIds | None = None
    """The one that it runs in, for logs."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What requests are checked against."""

    vocab_size: int
    """Ids run below this."""
    max_len: int
    """Most tokens of prompt and output together."""
    max_draft_tokens: int
    """Longest draft of a round."""
    methods: tuple[str, ...]
    """Methods on offer; any that draft may be joined by `+`."""
    acceptances: tuple[str, ...] = ("coupled",)
    """Acceptance rules on offer."""


def validate(request: Request, limits: Limits) -> None:
    """Checks a request against the engine.

    Raises:
        InvalidArgument: Says which field and what is allowed.
        FailedPrecondition: This verifier lacks what is asked.
    """
    if not request.prompt_ids:
        raise InvalidArgument("prompt_ids", "is empty; at least one token is needed")
    worst = max(request.prompt_ids)
    if worst >= limits.vocab_size:
        raise InvalidArgument("prompt_ids", f"ids must be below {limits.vocab_size}, got {worst}")
    if request.max_tokens < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, got {request.max_tokens}")
    total = len(request.prompt_ids) + request.max_tokens
    if total > limits.max_len:
        raise InvalidArgument(
            "max_tokens",
            f"prompt ({len(request.prompt_ids)}) and max_tokens ({request.max_tokens}) make "
            f"{total} tokens; at most {limits.max_len} are allowed",
        )
    if request.draft_tokens > limits.max_draft_tokens:
        raise InvalidArgument(
            "speculation.draft_tokens",
            f"must be 0 to {limits.max_draft_tokens}, got {request.draft_tokens}",
        )
    if len(request.drafters) > MOST_DRAFTERS:
        raise InvalidArgument("drafters", f"at most {MOST_DRAFTERS}, got {len(request.drafters)}")
    _validate_method(request.method, limits)
    if request.acceptance not in limits.acceptances:
        raise FailedPrecondition(
            f"speculation.acceptance: this verifier has {', '.join(limits.acceptances)}, "
            f"not {request.acceptance}"
        )
    request.lookahead.validate()
    request.sampling.validate(limits.vocab_size)


def _validate_method(method: str, limits: Limits) -> None:
    names = [] if method == "auto" else method.split("+")
    for name in names:
        if name not in limits.methods:
            raise FailedPrecondition(
                f"speculation.method: this verifier has {', '.join(limits.methods)}, not {name}"
            )
    if len(names) > 1 and ("plain" in names or len(set(names)) < len(names)):
        raise InvalidArgument(
            "speculation.method",
            f"{method}: joins different methods that draft; plain is not one of them",
        )


@dataclass
class Counts(Drafts):
    """What happened to one request; its rounds are those that committed tokens."""

    method: str = ""
    """What drafted."""
    cached_tokens: int = 0
    """Prompt tokens found in the cache at first admission."""
    accepted_by_method: dict[str, int] = field(default_factory=dict)
    """Draft tokens committed, by the method that proposed them."""

    def add_round(self, drafted: int, accepted: int, owners: Seq[str]) -> None:
        """Counts one target pass.

        Args:
            drafted: Draft tokens it checked.
            accepted: How many of them were committed.
            owners: Who proposed each of these.
        """
        for owner in owners:
            self.accepted_by_method[owner] = self.accepted_by_method.get(owner, 0) + 1
        self.add(drafted, accepted)

    def snapshot(self) -> Counts:
        """Returns a copy for other threads, which counting on does not change."""
        return Counts(  # `replace` takes twice as long, in every round
            method=self.method,
            cached_tokens=self.cached_tokens,
            rounds=self.rounds,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            accepted_per_position=self.accepted_per_position.copy(),
            accepted_by_method=self.accepted_by_method.copy(),
        )


class Event(NamedTuple):
    """News of one request; `finish` or `error` end it."""

    ids: Seq[int] = ()
    """Committed since the last event."""
    sources: Seq[Source] = ()
    """How each came."""
    finish: FinishReason | None = None
    """Set at the end."""
    counts: Counts | None = None
    """What happened so far; set unless `error` is."""
    error: PacelineError | None = None
    """Set where the engine had to give up."""
    times: RoundTimes | None = None
    """How long the round took; set where the request asks for it."""


Listener = Callable[[Event], None]
"""Called on the engine's thread; must not block."""


class Sequence:
    """One request inside the engine.

    Args:
        request: What was asked; valid.
        listener: Told of news.
        lease: Its share of the cache, empty.
        ticket: The engine's number for it.
    """

    def __init__(
        self,
        request: Request,
        listener: Listener,
        lease: KvLease,
        ticket: int,
    ) -> None:
        self.request = request
        self.listener = listener
        self.lease = lease
        self.ticket = ticket
        self.method = request.method
        """What drafts; the engine settles "auto"."""
        self.begun = False
        """Set once it was admitted: from then on there may be drafts for it."""
        self.gone = False
        """Set once it has left the engine."""
        self.ids = list(request.prompt_ids)
        """Committed ids, the prompt first."""
        self.computed = 0
        """How many of them have keys and values in the cache."""
        self.counts = Counts()
        self.stopwatch = Stopwatch(time.monotonic()) if request.timed else None
        """Times its rounds, where that is asked for."""
        self.arrived_at = time.monotonic()
        """When it was taken on, in seconds of the monotonic clock."""
        self.stepped = False
        """Set once it was part of a step."""
        self.began_at = 0.0
        """When its first token was committed, in seconds of the monotonic clock."""
        self.latest_at = 0.0
        """When its latest was."""
        self.finished: FinishReason | None = None
        self.seen: Tensor | None = None
        """Which ids occur so far, `[V]`; kept where a repetition penalty needs it."""

    def watch_ids(self, vocab_size: int, device: torch.device) -> None:
        """Prepares `seen`, where the sampling asks for it; on the thread that owns the model."""
        if self.request.sampling.penalises:
            self.seen = seen(self.ids, vocab_size, device)

    @property
    def tenant(self) -> bytes:
        """Whose it is, as far as that can be told; in the batch nobody's are one tenant among
        others."""
        return self.request.cache_salt

    @property
    def names(self) -> dict[str, str]:
        """What it goes by in logs."""
        span = self.request.span
        names = {"request": self.request.request_id, "method": self.method}
        return {**names, **span.names} if span else names

    @property
    def prompt_len(self) -> int:
        """Tokens in the prompt."""
        return len(self.request.prompt_ids)

    @property
    def output_len(self) -> int:
        """Tokens generated."""
        return len(self.ids) - self.prompt_len

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self.request.max_tokens - self.output_len

    @property
    def pending(self) -> int:
        """Committed tokens without keys and values; 1 while decoding."""
        return len(self.ids) - self.computed

    def add_computed(self, rows: int) -> None:
        """Takes note that so many more committed tokens have keys and values."""
        self.computed += rows
        self.lease.publish(self.ids, self.computed)

    def commit(self, ids: Seq[int]) -> int:
        """Appends ids up to the first that ends the text; returns how many were taken."""
        taken = 0
        for token in ids[: self.room]:
            self.ids.append(token)
            taken += 1
            if token in self.request.stop_ids:
                self.finished = FinishReason.STOP
                break
        if self.finished is None and self.room == 0:
            self.finished = FinishReason.LENGTH
        if self.seen is not None:
            mark(self.seen, ids[:taken])
        return taken
