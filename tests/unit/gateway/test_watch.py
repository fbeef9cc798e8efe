"""Times and codes of requests, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from common.errors import DeadlineExceeded, NotFound, PacelineError, Unavailable
from common.telemetry.distribution import Distribution
from common.telemetry.span import Span, Traces, code_of
from gateway.config import GatewayConfig
from gateway.request import Chunk, Complete, Prompt, Speculation, Started, Usage
from gateway.validation import MAX_NAME_CHARS
from gateway.watch import EXPECTED, FIRST_TOKEN_S, OUTPUT_TOKEN_S, REQUEST_S, Watch
from tests.clock import Clock
from tests.unit.gateway.asks import ask

STARTED = Started(request_id="r", model="m", seed=0, prompt_tokens=1, numerics="n")
COMPLETE = Complete(
    finish_reason=2,
    usage=Usage(prompt_tokens=1, completion_tokens=5),
    speculation=Speculation(
        method="plain",
        acceptance="coupled",
        rounds=5,
        drafted_tokens=0,
        accepted_tokens=0,
        accepted_per_position=(),
    ),
)


class Recording(Span):
    """A span that can be looked at."""

    recording = True

    def __init__(self) -> None:
        self.said: dict[str, Any] = {}

    def set(self, attributes: Mapping[str, Any]) -> None:
        self.said |= attributes


class Recorded(Traces):
    """Makes one span."""

    def __init__(self) -> None:
        self.made = Recording()

    @contextmanager
    def span(self, name: str, received: object) -> Iterator[Span]:
        yield self.made


def only(distribution: Distribution) -> tuple[int, float]:
    return sum(distribution.counts), distribution.sum


def test_a_generation_is_timed_from_the_call() -> None:
    clock = Clock()
    watch = Watch(clock=clock)
    with watch.generation((), watch.clock()) as seen:
        seen.asked(ask(prompt=Prompt(messages=[{"role": "user", "content": "x"}])))
        seen.saw(STARTED)
        for at, ids in ((1.0, (1, 2)), (1.5, ()), (2.0, (3,)), (4.0, (4, 5))):
            clock.now = at
            seen.saw(Chunk("", ids))
        seen.saw(COMPLETE)
        clock.now = 5.0
    kind = ("m", "chat")
    assert only(watch.first_token[kind]) == (1, 1.0)
    assert only(watch.output_token[kind]) == (1, 3.0 / 4)
    assert only(watch.duration[(*kind, "OK")]) == (1, 5.0)


def test_one_token_has_no_time_per_further_one() -> None:
    watch = Watch(clock=Clock())
    with watch.generation(None, watch.clock()) as seen:
        seen.asked(ask(prompt=Prompt(text="x")))
        seen.saw(STARTED)
        seen.saw(Chunk("", (1,)))
    assert not watch.output_token
    assert list(watch.first_token) == [("m", "text_completion")]


def test_what_fails_before_it_has_a_model_is_counted_and_not_timed() -> None:
    watch = Watch(clock=Clock())
    with pytest.raises(NotFound), watch.call("Generate"), watch.generation((), watch.clock()):
        raise NotFound("no such model")
    assert +watch.codes == {("Generate", "NOT_FOUND"): 1}
    assert not watch.duration


def test_what_fails_later_is_timed_under_its_code() -> None:
    watch = Watch(clock=Clock())

    def fail() -> None:
        with watch.generation((), watch.clock()) as seen:
            seen.asked(ask(prompt=Prompt(text="x")))
            seen.saw(STARTED)
            raise Unavailable("gone")

    with pytest.raises(Unavailable):
        fail()
    assert list(watch.duration) == [("m", "text_completion", "UNAVAILABLE")]
    assert not watch.first_token


def test_other_calls_are_counted() -> None:
    watch = Watch()
    for _ in range(2):
        with watch.call("Tokenize"):
            pass
    assert +watch.codes == {("Tokenize", "OK"): 2}


def test_what_is_likely_to_come_is_told_before_it_does() -> None:
    """A counter that begins with its first event shows Prometheus no increase."""
    assert set(Watch().codes) == {("Generate", code) for code in EXPECTED}
    assert not Watch().codes.total()


def test_tokens_of_one_draft_have_buckets_below_ten_milliseconds() -> None:
    assert len([bound for bound in OUTPUT_TOKEN_S if bound < 0.01]) >= 5


def test_what_takes_as_long_as_it_may_has_a_bucket() -> None:
    for bounds in (FIRST_TOKEN_S, OUTPUT_TOKEN_S, REQUEST_S):
        assert list(bounds) == sorted(set(bounds))
    assert FIRST_TOKEN_S[-1] >= 160
    assert REQUEST_S[-2] < GatewayConfig.max_generation_s < REQUEST_S[-1]


def end_with(error: BaseException | None, traces: Traces | None = None) -> None:
    """Resumes a generation of three tokens and ends it, with an error or well, after two more."""
    with (
        contextlib.suppress(Exception, asyncio.CancelledError),
        Watch(traces).generation((), 0) as seen,
    ):
        seen.asked(ask(prompt=Prompt(text="a secret")))
        seen.saw(replace(STARTED, prompt_tokens=7, resumed_tokens=3))
        seen.saw(Chunk("words", (1, 2)))
        if error is not None:
            raise error
        seen.saw(COMPLETE)


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (Unavailable("words"), "WARNING"),
        (PacelineError("words"), "WARNING"),
        (RuntimeError("words"), "WARNING"),
        (DeadlineExceeded("words"), "INFO"),
        (NotFound("words"), None),
        (asyncio.CancelledError(), None),
        (None, None),
    ],
)
def test_a_failure_is_a_line_without_words(
    error: BaseException | None, level: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    end_with(error)
    found = [record for record in caplog.records if record.message == "generation failed"]
    assert [record.levelname for record in found] == ([level] if level else [])
    for record in found:
        assert (record.request, record.code, record.tokens) == ("r", code_of(error), 5)
        assert "words" not in str(vars(record))
        assert "secret" not in str(vars(record))


def test_what_fails_before_it_is_read_is_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unavailable), Watch().generation((), 0.0):
        raise Unavailable("gone")
    (line,) = caplog.records
    assert (line.message, line.request, line.tokens) == ("generation failed", "", 0)


@pytest.mark.parametrize(("number", "name"), [(1, "stop"), (2, "length"), (99, "unspecified")])
def test_a_span_names_the_reason_it_ended_for(number: int, name: str) -> None:
    """A newer verifier may have others."""
    traces = Recorded()
    with Watch(traces).generation((), 0) as seen:
        seen.saw(STARTED)
        seen.saw(replace(COMPLETE, finish_reason=number))
    assert traces.made.said["gen_ai.response.finish_reasons"] == [name]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), DeadlineExceeded("late"), None])
def test_a_span_has_its_tokens_however_it_ends(error: BaseException | None) -> None:
    traces = Recorded()
    end_with(error, traces)
    said = traces.made.said
    told = (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"])
    assert told == ((1, 5) if error is None else (7, 5)), "as the end told, or so far"


def test_a_name_that_was_not_checked_yet_is_told_in_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traces = Recorded()
    with contextlib.suppress(Unavailable), Watch(traces).generation((), 0.0) as seen:
        seen.asked(ask(request_id="x" * 5000))
        raise Unavailable("gone")
    (line,) = caplog.records
    assert line.request == traces.made.said["gen_ai.response.id"] == "x" * MAX_NAME_CHARS
