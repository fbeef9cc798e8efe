"""What telemetry does by itself, in processor time: it shows on a busy machine, too."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.otlp_sink import OtlpSink
from common.telemetry.config import TracingConfig
from common.telemetry.otlp import OtlpTraces
from verifier.round_spans import RoundSpans
from verifier.round_times import Stopwatch
from verifier.sequence import Event
from verifier.totals import Totals

REPETITIONS = 5
FEW, MANY = 60, 20_000


def parts() -> list[tuple[str, float]]:
    """Time each part; return names and microseconds, the least of a few repetitions."""
    totals, watch = Totals(), Stopwatch(0.0)

    def count() -> None:
        totals.round("draft", 5, 3)
        totals.steps.observe(0.004)

    def lap() -> Event:
        watch.stepped(1.0, 2.0)
        times = watch.lap(3.0, ready_s=1.0, wire_s=0.001, drafted=5, accepted=3)
        return Event(times=times)

    events = [lap()]
    with OtlpSink() as sink:
        traces = OtlpTraces(TracingConfig(endpoint=sink.endpoint, sample_ratio=0.0), "bench")
        sampled = (("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"),)

        def unsampled() -> None:
            with traces.span("request", ()):
                pass

        with traces.span("request", sampled) as span:
            rounds = RoundSpans(span, 1.0)
            measured = [
                ("counting one round and one step", timed(count, MANY)),
                ("timing one round of a traced request", timed(lap, MANY)),
                ("spans of one round", timed(lambda: rounds.add(events), FEW)),
                ("a request that is not traced", timed(unsampled, FEW)),
            ]
        traces.close()
    return measured


def timed(work: Callable[[], object], times: int) -> float:
    """Return the microseconds of this thread that some work takes."""
    least = float("inf")
    for _ in range(REPETITIONS):
        began = time.thread_time()
        for _ in range(times):
            work()
        least = min(least, time.thread_time() - began)
    return least / times * 1e6
