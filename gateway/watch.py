"""What becomes of requests: counted and timed for metrics, told to traces. Never their text."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.telemetry.distribution import Distribution
from common.telemetry.span import Metadata, Span, Traces, coded
from gateway.request import Ask, Chunk, Complete, Event, FinishReason, Started
from gateway.validation import MAX_NAME_CHARS

log = logging.getLogger(__name__)

# The buckets of OpenTelemetry's conventions for generative AI; for output tokens some below 10 ms
# besides, since tokens of one draft come together, and above for what waits or takes long.
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
OUTPUT_TOKEN_S = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
)
REQUEST_S = tuple(0.01 * 2**power for power in range(20))

EXPECTED = ("OK", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
"""Codes of `Generate` that are told before any comes: a rate would miss the first of each."""

_FAILURES = {
    "UNAVAILABLE": logging.WARNING,
    "INTERNAL": logging.WARNING,
    "DEADLINE_EXCEEDED": logging.INFO,  # most are the client's own
}

Kind = tuple[str, str]
"""Of a generation: model and operation."""


class Watch:
    """Follows all requests of a gateway.

    Args:
        traces: Makes a span of each generation.
        clock: Seconds that only grow.

    Attributes:
        codes: Calls that ended, by method and code.
        first_token: Seconds until the first token.
        output_token: Seconds for each token after the first, averaged over a generation.
        duration: Seconds of a whole generation, by kind and code.
    """

    def __init__(
        self, traces: Traces | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.codes = Counter({("Generate", code): 0 for code in EXPECTED})
        self.first_token: dict[Kind, Distribution] = {}
        self.output_token: dict[Kind, Distribution] = {}
        self.duration: dict[tuple[str, str, str], Distribution] = {}
        self._traces = traces or Traces()
        self.clock = clock

    @contextmanager
    def call(self, method: str) -> Iterator[None]:
        """Counts a call by the code it ends with."""
        with coded(lambda code: self.codes.update([(method, code)])):
            yield

    @contextmanager
    def generation(self, received: Metadata | None, began: float) -> Iterator[Generation]:
        """Follows what a call generates.

        Args:
            received: Metadata of the call; may name the span that caused it, and have it recorded.
            began: When the call did, by `clock`.
        """
        with self._traces.span("generate", received) as span:
            watched = Generation(self, span, began)
            with coded(watched.end):
                yield watched


class Generation:
    """One generation.

    Args:
        watch: Gets the times.
        span: Of the call.
        began: When the call did.
    """

    def __init__(self, watch: Watch, span: Span, began: float) -> None:
        self._watch, self._span, self._began = watch, span, began
        self._request = self._operation = ""
        self._kind: Kind | None = None
        self._first = self._last = 0.0
        self._tokens = self._resumed = 0
        self._completed = False

    def asked(self, ask: Ask) -> None:
        """Takes what the request says."""
        chat = ask.prompt.messages is not None
        self._operation = "chat" if chat else "text_completion"
        self._request = ask.request_id[:MAX_NAME_CHARS]  # not checked yet
        if not self._span.recording:
            return
        sampling = ask.sampling
        self._span.set(
            {
                "gen_ai.operation.name": self._operation,
                "gen_ai.provider.name": "paceline",
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_k": sampling.top_k,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.response.id": self._request,
                "paceline.acceptance": ask.acceptance,
            }
        )
        if ask.max_tokens is not None:
            self._span.set({"gen_ai.request.max_tokens": ask.max_tokens})

    def saw(self, event: Event) -> None:
        """Takes what was just sent to the client."""
        if isinstance(event, Chunk):
            if event.ids:
                self._took(len(event.ids))
        elif isinstance(event, Started):
            self._kind, self._resumed = (event.model, self._operation), event.resumed_tokens
            self._span.rename(f"{self._operation} {event.model}")
            self._span.set(
                {
                    "gen_ai.request.model": event.model,
                    "gen_ai.response.model": event.model,
                    "gen_ai.usage.input_tokens": event.prompt_tokens,
                }
            )
        else:
            self._completed = True
            if self._span.recording:
                self._span.set(_results(event))

    def end(self, code: str) -> None:
        """Ends it."""
        so_far = self._resumed + self._tokens
        if code in _FAILURES:
            extra = {"request": self._request, "code": code, "tokens": so_far}
            log.log(_FAILURES[code], "generation failed", extra=extra)
        if self._kind is None:
            return
        if not self._completed:
            self._span.set({"gen_ai.usage.output_tokens": so_far})
        watch, model_code = self._watch, (*self._kind, code)
        seconds = watch.clock() - self._began
        watch.duration.setdefault(model_code, Distribution(REQUEST_S)).observe(seconds)
        if self._tokens > 1:
            each = (self._last - self._first) / (self._tokens - 1)
            watch.output_token.setdefault(self._kind, Distribution(OUTPUT_TOKEN_S)).observe(each)

    def _took(self, tokens: int) -> None:
        self._last = self._watch.clock()
        if not self._tokens:
            self._first = self._last
            assert self._kind is not None, "it starts before it streams"
            first = self._watch.first_token.setdefault(self._kind, Distribution(FIRST_TOKEN_S))
            first.observe(self._first - self._began)
        self._tokens += tokens


def _results(end: Complete) -> dict[str, str | int | list[str]]:
    return {
        "gen_ai.usage.input_tokens": end.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": end.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": end.usage.cached_tokens,
        "gen_ai.response.finish_reasons": [FinishReason(end.finish_reason).name.lower()],
        "paceline.method": end.speculation.method,
        "paceline.rounds": end.speculation.rounds,
        "paceline.drafted_tokens": end.speculation.drafted_tokens,
        "paceline.accepted_tokens": end.speculation.accepted_tokens,
    }
