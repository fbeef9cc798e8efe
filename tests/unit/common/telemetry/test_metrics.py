"""The page that Prometheus reads: filled on the event loop, and never the end of anything."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
import urllib.error
from typing import NoReturn

import pytest
from prometheus_client.exposition import ThreadingWSGIServer

from common.address import any_address
from common.telemetry import metrics
from common.telemetry.distribution import Distribution
from common.telemetry.metrics import Metric, Page, Source, exposed
from tests.ipv6 import needs_ipv6
from tests.scrapes import scrape, scrape_port
from tests.waiting import until

CALLS = Metric(name="paceline_calls_total", kind="counter", help="Calls.", labels=("code",))
LEVEL = Metric(name="paceline_level", kind="gauge", help="How high it is.")
TOOK = Metric(name="paceline_took_seconds", kind="histogram", help="How long it took.")


def source(fill, **labels: str) -> Source:
    return Source(metrics=(CALLS, LEVEL, TOOK), fill=fill, labels=labels)


async def test_values_have_the_labels_of_the_process_and_their_own() -> None:
    took = Distribution((0.1, 1.0))
    for seconds in (0.05, 0.1, 7.0):
        took.observe(seconds)
    threads = []

    def fill(page: Page) -> None:
        threads.append(threading.current_thread())
        page.put(CALLS, 3, "OK")
        page.put(LEVEL, True)
        page.put_all(TOOK, took)

    page = await scrape(source(fill, pool="t4"))
    assert threads == [threading.current_thread()]
    assert page.value("paceline_calls_total", code="OK", pool="t4") == 3
    assert page.value("paceline_level", pool="t4") == 1
    assert page.value("paceline_took_seconds_bucket", le="0.1") == 2
    assert page.value("paceline_took_seconds_bucket", le="1.0") == 2
    assert page.value("paceline_took_seconds_bucket", le="+Inf") == 3
    assert page.value("paceline_took_seconds_count", pool="t4") == 3
    assert page.value("paceline_took_seconds_sum") == 7.15
    assert "# HELP paceline_level How high it is." in page.text
    assert page.value("process_cpu_seconds_total") > 0


async def test_what_has_no_value_is_still_described() -> None:
    page = await scrape(source(lambda page: None))
    assert page.families["paceline_calls"] == "counter"
    assert page.families["paceline_took_seconds"] == "histogram"


@needs_ipv6
@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_address_of_ipv6_may_have_brackets(host: str) -> None:
    async with exposed(host, 0, source(lambda page: None)) as port:
        assert port


@needs_ipv6
@pytest.mark.skipif(any_address("0.0.0.0", asks=False) != "::", reason="no socket for both here")
@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_any_address_is_of_both_families(host: str) -> None:
    async with exposed(host, 0, source(lambda page: None)) as port:
        for address in ("127.0.0.1", "[::1]"):
            page = await scrape_port(port, address)
            assert "paceline_level" in page.families


async def test_a_bug_costs_the_rest_of_a_page_only(caplog: pytest.LogCaptureFixture) -> None:
    def fill(page: Page) -> None:
        page.put(LEVEL, 2)
        raise RuntimeError("bug")

    page = await scrape(source(fill))
    assert page.value("paceline_level") == 2
    assert "metrics are incomplete" in caplog.messages


@pytest.mark.parametrize("closed", [False, True])
def test_a_loop_that_does_not_answer_costs_the_page(
    closed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "_ANSWER_S", 0.01)
    loop = asyncio.new_event_loop()  # never runs
    if closed:
        loop.close()
    reader = metrics._Reader(source(lambda page: None), loop)
    with pytest.raises(metrics._NoAnswer):
        reader.collect()
    assert caplog.messages == ["no metrics"]
    loop.close()


async def test_a_page_that_nobody_filled_is_an_error_to_who_reads_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics, "_ANSWER_S", 0.01)
    monkeypatch.setattr(metrics._Reader, "_fill", lambda self, answer: None)
    with pytest.raises(urllib.error.HTTPError) as caught:
        await scrape(source(lambda page: None))
    assert caught.value.code == 500
    caught.value.close()
    assert "Traceback" not in capsys.readouterr().err


async def test_who_cannot_be_let_in_keeps_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def get_request(self: ThreadingWSGIServer) -> NoReturn:
        tried.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(metrics, "_PAUSE_S", 0.05)
    monkeypatch.setattr(ThreadingWSGIServer, "get_request", get_request)
    async with exposed("127.0.0.1", 0, source(lambda page: None)) as port:
        with socket.create_connection(("127.0.0.1", port)):
            await until(lambda: len(tried) > 2)
    assert tried[2] - tried[0] >= 0.1
