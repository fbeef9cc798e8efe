"""What stands in for CUDA's graphs: all of them write to one place, as real ones do."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, cast

import torch
from torch import Tensor

from common.model.cuda.model import CudaModel
from tests.tiny_models import VOCAB


class FakeGraphs:
    """Runs everything, and overwrites what it returned before."""

    def __init__(self) -> None:
        self.kinds: list[Any] = []
        self.kept: list[int] = []
        """Numbers that each of them returned, the memory of which a real one keeps."""
        self.cleared = 0
        self._before: tuple[Tensor, Tensor] | None = None

    def run(
        self, kind: Hashable, compute: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
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
        device = model._words.device
        model._logits = torch.zeros(rows, VOCAB, device=device)
        model._states = torch.zeros(rows, 48, device=device)
        return cast(FakeGraphs, graphs)

    def clear(self) -> None:
        self.cleared += 1
