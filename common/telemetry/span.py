"""Spans as the services see them: one per request, children of what the caller sent.

The classes here make none: they are what runs where tracing is off. `common.telemetry.otlp` has
those that do. Nothing here imports OpenTelemetry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from common.errors import PacelineError

Value = str | bool | int | float | Sequence[str] | Sequence[int]
Metadata = Iterable[Any]
"""Of a gRPC call: pairs of a name and a value."""


@dataclass(frozen=True, slots=True)
class SpanIds:
    """What names a span, in the forms of W3C's trace context."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    sampled: bool
    """Whether it is recorded."""
    state: str = ""
    """Other systems' part, passed on as it came."""

    @property
    def names(self) -> dict[str, str]:
        """What joins a log line to the span."""
        return {"trace_id": self.trace_id, "span_id": self.span_id}


_RAISED_IN = "_paceline_span"
"""Attribute of an error."""

_current: ContextVar[SpanIds | None] = ContextVar("paceline_span", default=None)


def current() -> SpanIds | None:
    """The span that runs now, if any."""
    return _current.get()


@contextmanager
def entered(ids: SpanIds) -> Iterator[None]:
    """Makes a span the one that runs now; an error that ends it is `raised_in` it."""
    before = _current.get()
    _current.set(ids)
    try:
        yield
    except BaseException as error:
        vars(error)[_RAISED_IN] = ids
        raise
    finally:
        # Not by token: a generator may be closed in another context than it began in.
        _current.set(before)


def raised_in(error: BaseException) -> SpanIds | None:
    """The span that an error ended, if any; for whoever tells of it after that."""
    found: SpanIds | None = vars(error).get(_RAISED_IN)
    return found


def metadata() -> tuple[tuple[str, str], ...]:
    """What a gRPC call carries so that what it causes belongs to the span that runs now."""
    ids = _current.get()
    if ids is None:
        return ()
    parent = f"00-{ids.trace_id}-{ids.span_id}-{'01' if ids.sampled else '00'}"
    return (("traceparent", parent), *((("tracestate", ids.state),) if ids.state else ()))


def code_of(error: BaseException | None) -> str:
    """The name of the gRPC status with which a handler's error ends its call."""
    if error is None:
        return "OK"
    if isinstance(error, PacelineError):
        return error.code
    gone = isinstance(error, asyncio.CancelledError | GeneratorExit)
    return "CANCELLED" if gone else "INTERNAL"


@contextmanager
def coded(told: Callable[[str], object]) -> Iterator[None]:
    """Tells at the end what `code_of` makes of the error that went through, or of none."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        told(code_of(error))


class Span:
    """A span that is not recorded."""

    recording = False
    """Whether anybody will see what is said here."""

    def rename(self, name: str) -> None:
        """Gives it a better name than it began with."""

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Adds attributes; never text of prompts or outputs."""

    def child(
        self, name: str, began_s: float, ended_s: float, attributes: Mapping[str, Value]
    ) -> Span:
        """Adds a span that is over.

        Args:
            name: What it was.
            began_s: When it began, in seconds of the monotonic clock.
            ended_s: When it ended, on the same clock.
            attributes: Of the new span.
        """
        return self


NONE = Span()


class Traces:
    """Makes spans; this one makes none."""

    @contextmanager
    def span(self, name: str, received: Metadata | None) -> Iterator[Span]:
        """Runs a request's part in this process; an error ends the span with its code.

        Args:
            name: What it is.
            received: What came with the call: the span belongs to the one named there.
        """
        yield NONE

    def close(self) -> None:
        """Sends what is left, for a short while."""
