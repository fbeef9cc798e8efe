"""Passes captured as CUDA graphs: what a pass launches is launched at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

Computed = tuple[Tensor, Tensor]


class Graphs:
    """Captures computations by what they are padded to.

    The first computation of a kind runs as it is, which compiles and sets up what it needs, the
    second is captured, and all after are replays. They read and write the same memory.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Computed]] = {}
        self._met: set[Hashable] = set()
        self._memory: Any = None

    def run(self, kind: Hashable, compute: Callable[[], Computed]) -> Computed:
        """Runs a computation.

        Args:
            kind: Equal ones launch the same kernels with the same arguments.
            compute: Launches them; its inputs lie where they always do.

        Returns:
            What it computed, overwritten by the next of its kind.
        """
        if kind in self._graphs:
            graph, computed = self._graphs[kind]
            graph.replay()
            return computed
        if kind not in self._met:
            self._met.add(kind)
            return compute()
        graph = torch.cuda.CUDAGraph()
        # The engine's thread alone: others may copy meanwhile.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            computed = compute()
        self._memory = graph.pool()
        self._graphs[kind] = graph, computed
        graph.replay()
        return computed

    def clear(self) -> None:
        """Forgets all, where memory they read is given back."""
        self._graphs.clear()
        self._met.clear()
