"""Passes captured as CUDA graphs: what a pass launches is launched at once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

PassTensors = tuple[Tensor, Tensor, Tensor]
"""Logits `[M, V]`, states `[M, hidden]` and features `[N, taps, hidden]` of a pass."""

_MOST_GRAPHS = 64
"""Kept; the one that was not used for longest makes room."""

_log = logging.getLogger(__name__)


class Graphs:
    """Captures computations by what they are padded to.

    The first computation of a kind runs as it is, which compiles and sets up what it needs, the
    second is captured, and all after are replays. One thread runs them.

    Args:
        device: Where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device)
        self._graphs: OrderedDict[Hashable, tuple[Any, PassTensors]] = OrderedDict()
        self._met: set[Hashable] = set()
        self._refused: set[Hashable] = set()
        self._lacking: set[Hashable] = set()  # memory
        self._memory: Any = None

    def run(self, kind: Hashable, compute: Callable[[], PassTensors]) -> PassTensors:
        """Runs a computation.

        Args:
            kind: Equal ones launch the same kernels with the same arguments.
            compute: Launches them; inputs and what it returns lie where they always do.

        Returns:
            What it returned, overwritten by the next of any kind.
        """
        if kind in self._graphs:
            self._graphs.move_to_end(kind)
        elif (
            kind not in self._met
            or kind in self._refused | self._lacking
            or not self._capture(kind, compute)
        ):
            computed = compute()
            self._met.add(kind)  # now: a run that failed may have compiled nothing
            return computed
        graph, computed = self._graphs[kind]
        graph.replay()
        return computed

    def clear(self) -> None:
        """Forgets all, where memory they read is given back."""
        self._graphs.clear()
        self._met.clear()
        self._refused.clear()
        self._lacking.clear()
        self._memory = None

    def _capture(self, kind: Hashable, compute: Callable[[], PassTensors]) -> bool:
        """Makes a graph; False where that fails, which leaves everything as it was."""
        before = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                torch.cuda.current_blas_handle()  # a thread's first may not be made in a capture
            # Other threads may copy meanwhile.
            with torch.cuda.graph(
                graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
            ):
                computed = compute()
        except RuntimeError as error:  # no memory is one, too
            torch.cuda.set_stream(before)
            lacks = isinstance(error, torch.OutOfMemoryError)
            (self._lacking if lacks else self._refused).add(kind)
            facts = {"kind": str(kind), "reason": str(error).partition("\n")[0]}
            _log.warning("a pass could not be captured: its kind runs as it is", extra=facts)
            return False
        self._memory = graph.pool()
        self._lacking.clear()  # there may be memory for them now
        self._graphs[kind] = graph, computed
        if len(self._graphs) > _MOST_GRAPHS:
            oldest, _ = self._graphs.popitem(last=False)
            self._met.discard(oldest)  # it is captured anew only if it comes back more than once
        return True
