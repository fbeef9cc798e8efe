"""Kernels are interpreted with numpy where there is no GPU; what that must not depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _sums_of_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum every product in one order, as a device does: BLAS has another for some rows of a tile,
    with some processors."""
    if torch.cuda.is_available():
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")

    def create_dot(builder: object, a: Any, b: Any, acc: Any, *rest: object) -> Any:
        left, right = (each.data.astype(acc.data.dtype) for each in (a, b))
        sums = np.einsum("...ik,...kj->...ij", left, right) + acc.data
        return interpreter.TensorHandle(sums, acc.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
