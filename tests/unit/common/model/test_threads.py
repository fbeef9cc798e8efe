from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.model import threads
from common.model.kv_cache import KvLease
from common.model.native import NativeModel, instructions
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner

pytestmark = pytest.mark.skipif(not instructions(), reason="no compiler or no AVX2 here")


@pytest.mark.parametrize(
    ("most_threads", "shared_s", "alone_s", "taken"),
    [
        (4, 0.016, 0.0, 4),
        (4, 0.002, 0.0, 1),
        (4, 0.016, 0.2, 1),
        (0, 0.016, 0.0, 1),
        (1, 0.016, 0.0, 1),
    ],
    ids=["milliseconds sooner", "hardly sooner", "for how long it is", "no others", "no more"],
)
def test_passes_of_few_rows_take_all_threads_where_that_saves_milliseconds(
    most_threads: int,
    shared_s: float,
    alone_s: float,
    taken: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16", most_threads=most_threads)

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            self.now += alone_s + shared_s / target.threads
            return self.now

    monkeypatch.setattr(threads, "time", Clock())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    threads.choose(target)
    assert target.threads == taken
    assert target.pool.blocks.held == 0


def test_a_row_alone_is_a_large_pass_once_passes_are_spread(tmp_path: Path) -> None:
    target = runner(tiny_models.save("llama", tmp_path), "bfloat16", most_threads=4)
    native = target.loaded.forward
    assert isinstance(native, NativeModel)
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(1)
    row = Segment([0], 0, lease.slots, wanted=(0,))
    for whether in (False, True):
        target.spread(whether)
        assert native._lay_out([row]).words[3] == whether
