"""Kernels are interpreted with numpy where there is no GPU; what that must not depend on."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from common.model import loader, sampling
from common.model.attention import AttentionContext
from common.model.kernels import WholePass
from common.model.llama import Llama


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum every product in one order, as a device does: BLAS has another for some rows of a tile,
    with some processors. And take the language's core over once, not again whenever a kernel calls
    a function, which takes half of the time."""
    if torch.cuda.is_available():
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter")

    def create_dot(builder: object, a: Any, b: Any, acc: Any, *rest: object) -> Any:
        left, right = (each.data.astype(acc.data.dtype) for each in (a, b))
        sums = np.einsum("...ik,...kj->...ij", left, right) + acc.data
        return interpreter.TensorHandle(sums, acc.dtype.scalar)

    core = interpreter.tl.core

    def call(function: Any, *args: object, **named: object) -> object:
        if core.is_builtin(core.arange):
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **named)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)


def _prepare(model: Llama, context: AttentionContext, **_: object) -> tuple[WholePass, str]:
    from common.model.cuda.model import CudaModel
    from common.model.cuda.products import Products, TiledProduct

    few = partial(TiledProduct, tile=4)  # every row that is padding is interpreted, too
    return CudaModel(model, context, Products(few, few, 4)), "cuda"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Has models loaded for the CUDA decoder, wherever they run."""
    pytest.importorskip("triton")
    monkeypatch.setattr(loader, "prepare", _prepare)
    return monkeypatch


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has kernels draw on the device they run on, also where that is the CPU."""
    pytest.importorskip("triton")
    from common.model.cuda import draw, model

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    for module in (sampling, model):
        monkeypatch.setattr(
            module, "drawer", lambda device: draw.draw if device.type == kind else None
        )
