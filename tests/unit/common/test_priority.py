"""Threads stand back, and those they start."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest

from common import priority

needs_linux = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has it")


def started() -> int:
    with ThreadPoolExecutor(1) as child:
        return child.submit(os.sched_getscheduler, 0).result()


@needs_linux
def test_a_thread_and_those_it_starts_stand_back_until_it_goes_first() -> None:
    def run() -> list[int]:
        found = []
        for change in (priority.stand_back, priority.go_first):
            change()
            found += [os.sched_getscheduler(0), started()]
        return found

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(run).result()
    assert found == [os.SCHED_BATCH] * 2 + [os.SCHED_OTHER] * 2
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@needs_linux
def test_where_it_is_forbidden_all_goes_on() -> None:
    with patch("os.sched_setscheduler", side_effect=PermissionError):
        priority.stand_back()
