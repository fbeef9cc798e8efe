from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.model import threads
from tests import tiny_models
from tests.inprocess import runner


@pytest.mark.parametrize(
    ("most_threads", "work_s", "taken"),
    [(4, 0.016, 4), (4, 0.002, 1), (0, 0.016, 1), (1, 0.016, 1)],
    ids=["milliseconds sooner", "hardly sooner", "no others", "no more"],
)
def test_passes_of_few_rows_take_all_threads_where_that_saves_milliseconds(
    most_threads: int,
    work_s: float,
    taken: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16", most_threads=most_threads)

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            self.now += work_s / target.threads
            return self.now

    monkeypatch.setattr(threads, "time", Clock())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    threads.settle(target)
    assert target.threads == taken
    assert target.pool.blocks.held == 0
