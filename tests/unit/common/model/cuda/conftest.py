"""Kernels are interpreted with numpy where there is no GPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from common.model import loader, sampling
from common.model.attention import AttentionContext
from common.model.linear import TiledProduct
from common.model.llama import Llama
from common.model.whole_pass import WholePass
from tests.unit.common.model.cuda import interpreter


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        interpreter.mend(monkeypatch)


def _prepare(model: Llama, context: AttentionContext, **_: object) -> tuple[WholePass, str]:
    from common.model.cuda.model import CudaModel
    from common.model.cuda.products import Products

    few = partial(TiledProduct, tile=4)  # every row that is padding is interpreted, too
    return CudaModel(model, context, Products(few, few, 4, few)), "cuda"


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
