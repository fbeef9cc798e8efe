"""When passes are captured and when they are replayed. CUDA's graphs are stood in for here: what
they do on a device is shown by `tests/gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from common.model.cuda.graphs import Graphs


class FakeGraph:
    """Does on replay what was done while it was captured."""

    made: ClassVar[list[FakeGraph]] = []

    def __init__(self) -> None:
        self.replays = 0
        self.memory: object = None
        FakeGraph.made.append(self)

    def pool(self) -> object:
        return "memory"

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def capture(graph: FakeGraph, pool: object, capture_error_mode: str) -> Iterator[None]:
        graph.memory = pool
        assert capture_error_mode == "thread_local"
        yield

    FakeGraph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", capture)


def test_the_first_runs_the_second_is_captured_the_others_replayed() -> None:
    graphs, runs = Graphs(), 0

    def compute() -> tuple[Tensor, Tensor]:
        nonlocal runs
        runs += 1
        return torch.zeros(1), torch.zeros(1)

    first = graphs.run("small", compute)
    assert (runs, FakeGraph.made) == (1, [])
    second = graphs.run("small", compute)
    assert runs == 2
    assert FakeGraph.made[0].replays == 1, "what was captured has not run"
    assert graphs.run("small", compute) is second is not first
    assert (runs, FakeGraph.made[0].replays) == (2, 2)

    graphs.run("large", compute)
    graphs.run("large", compute)
    assert [graph.memory for graph in FakeGraph.made] == [None, "memory"], "they share memory"

    graphs.clear()
    graphs.run("small", compute)
    assert (runs, len(FakeGraph.made)) == (5, 2)
