"""Which span runs now, what calls carry of it, and what an error ends one with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.errors import Aborted, InvalidArgument
from common.telemetry import span
from common.telemetry.config import TracingConfig
from common.telemetry.span import SpanIds, Traces, code_of, coded, entered, raised_in
from common.telemetry.traces import open_traces

IDS = SpanIds(trace_id="0a" * 16, span_id="b7" * 8, sampled=True)
CALLER = (("traceparent", f"00-{'0a' * 16}-{'b7' * 8}-01"),)


def test_calls_carry_the_span_that_runs() -> None:
    assert span.metadata() == ()
    with entered(IDS):
        assert span.metadata() == CALLER
        with entered(SpanIds("0c" * 16, "0d" * 8, sampled=False, state="a=1")):
            parent, state = span.metadata()
            assert parent == ("traceparent", f"00-{'0c' * 16}-{'0d' * 8}-00")
            assert state == ("tracestate", "a=1")
        assert span.current() is IDS
    assert span.current() is None


async def test_tasks_do_not_see_each_others_spans() -> None:
    inside, seen = asyncio.Event(), asyncio.Event()

    async def one() -> None:
        with entered(IDS):
            inside.set()
            await seen.wait()

    async def other() -> None:
        await inside.wait()
        assert span.current() is None
        seen.set()

    await asyncio.gather(one(), other())


async def test_a_generator_may_be_closed_elsewhere_than_it_began() -> None:
    async def numbers() -> AsyncIterator[int]:
        with entered(IDS):
            yield 1
            yield 2

    running = numbers()
    await asyncio.create_task(anext(running))  # type: ignore[arg-type]
    await running.aclose()  # type: ignore[attr-defined]


def test_an_error_names_the_span_that_it_ended() -> None:
    with pytest.raises(KeyError) as caught, entered(IDS):
        raise KeyError("bug")
    assert raised_in(caught.value) is IDS
    assert raised_in(KeyError("bug")) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, "OK"),
        (Aborted("later"), "ABORTED"),
        (InvalidArgument("n", "too many"), "INVALID_ARGUMENT"),
        (asyncio.CancelledError(), "CANCELLED"),
        (GeneratorExit(), "CANCELLED"),
        (KeyError("bug"), "INTERNAL"),
    ],
)
def test_errors_have_the_names_of_grpcs_codes(error: BaseException | None, code: str) -> None:
    assert code_of(error) == code


@pytest.mark.parametrize("error", [None, Aborted("later"), asyncio.CancelledError()])
def test_a_block_tells_its_code_and_lets_the_error_through(error: BaseException | None) -> None:
    told: list[str] = []

    def run() -> None:
        with coded(told.append):
            assert told == []
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(type(error)):
            run()
    assert told == [code_of(error)]


def test_where_tracing_is_off_nothing_is_recorded_and_nothing_carried() -> None:
    traces = open_traces(TracingConfig(), "gateway")
    assert type(traces) is Traces
    with traces.span("generate", CALLER) as made:
        assert not made.recording
        made.set({"a": 1})
        made.rename("b")
        assert made.child("c", 0.0, 1.0, {}) is made
        assert span.metadata() == ()
    traces.close()
