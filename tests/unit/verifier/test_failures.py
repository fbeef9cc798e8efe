"""What fails again and again is counted each time, and told of now and then."""

from __future__ import annotations

import logging

import pytest

from tests.clock import Clock
from verifier.failures import Failures


def test_failures_of_one_kind_are_told_of_at_once_and_then_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    failures = Failures(clock)
    for _ in range(25):
        failures.add("pass", RuntimeError("boom"), {"requests": ["r"]})
        clock.now += 1.0
    told = [record.__dict__ for record in caplog.records]
    assert [each["since_the_last"] for each in told] == [1, 10, 10]
    assert all(each["requests"] == ["r"] and each["exc_info"] for each in told)
    assert failures.counts == {"pass": 25, "passes": 0, "draft": 0}


def test_another_kind_is_told_of_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(Clock())
    for where in ("pass", "draft"):
        for error in (RuntimeError("boom"), MemoryError()):
            for _ in range(2):
                failures.add(where, error, {})
    assert len(caplog.records) == 4
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
