"""What stands in for CUDA's graphs: all of them write to one place, as real ones do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

from common.model.cuda.graphs import Graphs, PassTensors
from common.model.cuda.model import CudaModel
from tests.tiny_models import VOCAB


class FakeGraphs:
    """Runs everything, and overwrites what it returned before."""

    def __init__(self) -> None:
        self.kinds: list[Any] = []
        self.kept: list[int] = []
        """Numbers that each of them returned, the memory of which a real one keeps."""
        self.cleared = 0
        self._before: PassTensors | None = None

    def run(self, kind: Hashable, compute: Callable[[], PassTensors]) -> PassTensors:
        for part in self._before or ():
            part.fill_(float("nan"))
        self.kinds.append(kind)
        self._before = compute()
        self.kept.append(sum(part.numel() for part in self._before))
        return self._before

    @classmethod
    def into(cls, model: CudaModel, rows: int) -> FakeGraphs:
        """Has a model's passes of so many rows at most be graphs, which write to one place."""
        graphs: Any = cls()
        model._graphs = graphs
        make_room(model, rows)
        return cast(FakeGraphs, graphs)

    def clear(self) -> None:
        self.cleared += 1


def make_room(model: CudaModel, rows: int) -> None:
    """Gives a model the place that its graphs write to."""
    device = model._words.device
    model._logits = torch.zeros(rows, VOCAB, device=device)
    model._states = torch.zeros(rows, 48, device=device)
    model._features = torch.zeros(rows, len(model._context.taps), 48, device=device)


class Launches(TorchDispatchMode):
    """A graph on a CPU: what was launched is launched again, on the very same tensors.

    A capture runs nothing, so that what was written in one is taken back. Before a replay others
    have used the memory between inputs and results.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replays = 0
        self._launches: list[Callable[[], object]] = []
        self._between: list[Tensor] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        launch = partial(function, *args, **(kwargs or {}))
        if function._schema.is_mutable:
            return self._launch(launch, args[:1])
        found = launch()
        if not any(each.alias_info for each in function._schema.returns):
            self._between.append(found)
            if "empty" not in function.name():
                self._launches.append(lambda: found.copy_(launch()))
        return found

    def kernel(self, launch: Callable[[], object], args: tuple[object, ...]) -> None:
        """Launches one of Triton's."""
        with _disable_current_modes():
            self._launch(launch, args)

    def _launch(self, launch: Callable[[], object], args: tuple[object, ...]) -> object:
        self._before += [(each, each.clone()) for each in args if isinstance(each, Tensor)]
        self._launches.append(launch)
        return launch()

    def take_back(self) -> None:
        """Has all be as it was before the capture."""
        for place, content in reversed(self._before):
            place.copy_(content)

    def pool(self) -> object:
        return None

    def replay(self) -> None:
        self.replays += 1
        for part in self._between:
            part.fill_(float("nan") if part.is_floating_point() else -1)
        for launch in self._launches:
            launch()

    @classmethod
    def of(cls, model: CudaModel, monkeypatch: pytest.MonkeyPatch) -> list[Launches]:
        """Has a model on a CPU capture passes as it would on a device; what it captures."""
        graphs: list[Launches] = []
        launch = InterpretedFunction.run

        def run(kernel: object, *args: object, **named: object) -> None:
            again = partial(launch, kernel, *args, **named)
            graphs[-1].kernel(again, args)

        @contextmanager
        def capture(graph: Launches, **_: object) -> Iterator[None]:
            graphs.append(graph)
            with monkeypatch.context() as patched, graph:
                patched.setattr(InterpretedFunction, "run", run)
                yield
            graph.take_back()

        monkeypatch.setattr(torch.cuda, "CUDAGraph", cls)
        monkeypatch.setattr(torch.cuda, "graph", capture)
        for name in ("Stream", "current_stream", "current_blas_handle"):
            monkeypatch.setattr(torch.cuda, name, lambda *_: None)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        model._graphs = Graphs(model._words.device)
        make_room(model, 16)
        return graphs
