"""Metrics: what a process tells of itself, and the page on which Prometheus reads it.

A service declares its metrics as data and fills them in when it is asked, from numbers that it
keeps anyway. Nothing is recorded while requests run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    make_wsgi_app,
    start_http_server,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from common.address import any_address
from common.errors import StartupError
from common.telemetry.distribution import Distribution

log = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_S = 5.0
"""Time the event loop gets to fill a page; Prometheus gives up after ten seconds."""

_PAUSE_S = 0.1
"""Before the next reader is let in where that failed, as for want of descriptors."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric, as it stands on the page."""

    name: str
    """Counters end in _total; units are base units."""
    kind: Literal["counter", "gauge", "histogram"]
    """How its values behave."""
    help: str
    """What it is."""
    labels: tuple[str, ...] = ()
    """Its own labels, beside those that all of the process have."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """What one process has to tell."""

    metrics: Sequence[Metric]
    """All that may come."""
    fill: Callable[[Page], None]
    """Puts the values in; called on the event loop."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of every metric."""


class Page:
    """The values of one scrape.

    Args:
        source: Whose.
    """

    def __init__(self, source: Source) -> None:
        self._common = tuple(source.labels.values())
        self._families = {
            metric.name: _family(metric, (*source.labels, *metric.labels))
            for metric in source.metrics
        }

    @property
    def families(self) -> Iterable[Family]:
        """All metrics, those without a value, too."""
        return self._families.values()

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """Adds a value.

        Args:
            metric: A declared one, counter or gauge.
            value: Its value.
            *labels: Values of the metric's own labels.
        """
        family = self._families[metric.name]
        assert not isinstance(family, HistogramMetricFamily), metric.name
        family.add_metric((*self._common, *labels), value)

    def put_all(self, metric: Metric, distribution: Distribution, *labels: str) -> None:
        """Adds a histogram's values."""
        ends = [*(repr(float(bound)) for bound in distribution.bounds), "+Inf"]
        buckets = list(zip(ends, accumulate(list(distribution.counts)), strict=True))
        family = self._families[metric.name]
        assert isinstance(family, HistogramMetricFamily), metric.name
        family.add_metric((*self._common, *labels), buckets=buckets, sum_value=distribution.sum)


class _NoAnswer(Exception):
    """The event loop did not fill a page."""


class _Reader(Collector):
    """Has the event loop fill a page, which is where everything may be looked at."""

    def __init__(self, source: Source, loop: asyncio.AbstractEventLoop) -> None:
        self._source, self._loop = source, loop

    def describe(self) -> Iterable[Family]:
        return Page(self._source).families

    def collect(self) -> Iterable[Family]:
        answer: Future[Page] = Future()
        try:
            self._loop.call_soon_threadsafe(self._fill, answer)
            return answer.result(_ANSWER_S).families
        except (TimeoutError, RuntimeError) as error:  # too busy, or closed already
            log.warning("no metrics", extra={"reason": type(error).__name__})
            raise _NoAnswer from None

    def _fill(self, answer: Future[Page]) -> None:
        page = Page(self._source)
        try:
            self._source.fill(page)
        except Exception:  # a bug here must not reach requests; what is there already is shown
            log.exception("metrics are incomplete")
        answer.set_result(page)


@asynccontextmanager
async def exposed(host: str, port: int | None, source: Source) -> AsyncIterator[int | None]:
    """Serves a process's metrics in plaintext, from a thread of their own.

    Args:
        host: Address to listen on, of IPv6 with or without brackets; any one of a family stands for
            all of both, as for gRPC, but not where sockets are made for IPv6 only
            (net.ipv6.bindv6only).
        port: Port to listen on; 0 takes a free one, None serves nothing.
        source: What is told.

    Yields:
        The port.

    Raises:
        StartupError: The address cannot be bound.
    """
    if port is None:
        yield None
        return
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Reader(source, asyncio.get_running_loop()))
    try:
        # Not on the event loop: the library looks the address's name up.
        address = any_address(host, asks=False)
        server, thread = await asyncio.to_thread(start_http_server, port, address, registry)
        server.set_app(_or_an_error(make_wsgi_app(registry)))
        server.get_request = _after_a_pause(server.get_request)  # type: ignore[method-assign]
    except OSError as error:
        raise StartupError(
            f"metrics_port: cannot listen on port {port} of {host}: {error.strerror}"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    try:
        log.info("metrics served", extra={"port": server.server_port})
        yield server.server_port
    finally:
        await asyncio.to_thread(stop)  # a page may be waiting for the event loop


def _or_an_error(app: WSGIApplication) -> WSGIApplication:
    """An app whose page is an error where the event loop did not fill it, for all to see that the
    numbers stand still; the server would make it one, too, but with a traceback on stderr."""

    def served(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except _NoAnswer:
            start_response("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"the process is too busy to tell of itself\n"]

    return served


def _after_a_pause(accept: Callable[[], T]) -> Callable[[], T]:
    """Lets readers in, and pauses where that fails: the server tries again at once for as long as
    one waits, which leaves the engine half of the interpreter's time."""

    def patient() -> T:
        try:
            return accept()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    return patient


def _family(metric: Metric, labels: tuple[str, ...]) -> Family:
    if metric.kind == "counter":
        assert metric.name.endswith("_total"), metric.name
        return CounterMetricFamily(metric.name.removesuffix("_total"), metric.help, labels=labels)
    make = GaugeMetricFamily if metric.kind == "gauge" else HistogramMetricFamily
    return make(metric.name, metric.help, labels=labels)
