"""When passes are captured and when they are replayed. CUDA's graphs are stood in for here: what
they do on a device is shown by `tests/gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from common.model.cuda import graphs as module
from common.model.cuda.graphs import Graphs, PassTensors

CPU = torch.device("cpu")


class FakeCuda:
    """Counts what is captured and replayed."""

    def __init__(self) -> None:
        self.graphs: list[FakeGraph] = []
        self.memory: list[object] = []
        self.error: RuntimeError | None = None
        self.handles = 0
        self.stream: object = "the thread's"

    @contextmanager
    def capture(
        self, graph: FakeGraph, pool: object, stream: object, capture_error_mode: str
    ) -> Iterator[None]:
        assert self.handles == len(self.memory) + 1, "a handle is there before each capture"
        assert capture_error_mode == "thread_local"
        self.memory.append(pool)
        self.stream = stream
        yield
        if self.error:
            raise self.error
        self.stream = "the thread's"

    def handle(self) -> None:
        self.handles += 1

    def set_stream(self, stream: object) -> None:
        self.stream = stream


class FakeGraph:
    def __init__(self, cuda: FakeCuda) -> None:
        self.replays = 0
        cuda.graphs.append(self)

    def pool(self) -> object:
        return "memory"

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: FakeGraph(fake))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "its own")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", fake.capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: fake.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", fake.set_stream)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", fake.handle)
    return fake


class Counted:
    """A computation that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> PassTensors:
        self.runs += 1
        return torch.zeros(1), torch.zeros(1), torch.zeros(1)


def test_the_first_runs_the_second_is_captured_the_others_replayed(cuda: FakeCuda) -> None:
    graphs, compute = Graphs(CPU), Counted()
    first = graphs.run("small", compute)
    assert (compute.runs, cuda.graphs) == (1, [])
    second = graphs.run("small", compute)
    assert compute.runs == 2
    assert cuda.graphs[0].replays == 1, "what was captured has not run"
    assert graphs.run("small", compute) is second is not first
    assert (compute.runs, cuda.graphs[0].replays) == (2, 2)

    graphs.run("large", compute)
    graphs.run("large", compute)
    assert cuda.memory == [None, "memory"], "they share memory"

    graphs.clear()
    graphs.run("small", compute)
    assert (compute.runs, len(cuda.graphs)) == (5, 2)
    graphs.run("small", compute)
    assert cuda.memory == [None, "memory", None], "memory of graphs that are no more is not asked"


@pytest.mark.parametrize("lacking", [False, True])
def test_what_cannot_be_captured_runs_as_it_is(
    lacking: bool, cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    graphs, compute = Graphs(CPU), Counted()
    graphs.run("small", compute)
    cuda.error = (torch.OutOfMemoryError if lacking else RuntimeError)("no\nand more")
    graphs.run("small", compute)
    assert compute.runs == 3, "once for the capture, once for the result"
    assert cuda.stream == "the thread's"
    (record,) = caplog.records
    assert record.__dict__["reason"] == "no"
    graphs.run("small", compute)
    assert (compute.runs, len(cuda.memory)) == (4, 1), "it is not tried again"

    cuda.error = None
    for _ in range(2):
        graphs.run("other", compute)
    assert cuda.graphs[-1].replays == 1, "others are"
    graphs.run("small", compute)
    assert len(cuda.memory) == (3 if lacking else 2), "there is memory where one was captured"


def test_graphs_are_bounded(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_GRAPHS", 2)
    graphs, compute = Graphs(CPU), Counted()
    for kind in "aabbacc":  # b is the one that was not used for longest
        graphs.run(kind, compute)
    captured = len(cuda.graphs)
    assert captured == 3
    graphs.run("a", compute)
    graphs.run("c", compute)
    assert len(cuda.graphs) == captured
    graphs.run("b", compute)
    assert len(cuda.graphs) == captured, "what comes back once is not captured"
    graphs.run("b", compute)
    assert len(cuda.graphs) == captured + 1
