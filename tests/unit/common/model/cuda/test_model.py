"""The CUDA decoder, interpreted where there is no GPU: models of `transformers`, and one text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model import loader
from common.model.attention import AttentionContext
from common.model.batch import Segment
from common.model.kernels import WholePass
from common.model.kv_cache import KvLease
from common.model.runner import Output, Runner
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import MAX_LEN, VOCAB

pytest.importorskip("triton")

from common.model.cuda.model import CudaModel
from common.model.cuda.products import Products, TiledProduct

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_FEW = partial(TiledProduct, tile=4)
"""Products of few rows: every row that is padding is interpreted, too."""


def _prepare(model: Any, context: AttentionContext, **_: object) -> tuple[WholePass, str]:
    return CudaModel(model, context, MAX_LEN, Products(_FEW, _FEW, 4)), "cuda"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Has models loaded for the CUDA decoder, wherever they run."""
    monkeypatch.setattr(loader, "prepare", _prepare)
    return monkeypatch


def _ids(length: int) -> list[int]:
    return np.random.default_rng(0).integers(3, VOCAB, length).tolist()


def _outputs(target: Runner) -> list[Output]:
    """A prompt longer than the window, and a tree behind it beside another text."""
    own, other = KvLease(target.pool.blocks), KvLease(target.pool.blocks)
    assert own.reserve(80)
    assert other.reserve(20)
    ids = _ids(60)
    tree = TokenTree.chain(7, (11, 12))
    tree.add_path((21, 12))
    tree.add_path((11, 33))
    batches: Sequence[list[Segment]] = (
        [Segment(ids[:50], 0, own.slots, wanted=[])],
        [
            Segment(ids[50:], 50, own.slots, wanted=[0, 9]),
            Segment(ids[:9], 0, other.slots, wanted=[8]),
        ],
        [
            Segment(ids[9:11], 9, other.slots, wanted=[1]),
            Segment(tree.ids, 60, own.slots, tree=tree, wanted=range(len(tree))),
        ],
    )
    outputs = [target.forward(batch) for batch in batches]
    for lease in (own, other):
        lease.release()
    return outputs[1:]  # of the first, none is wanted


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_logits_and_states_are_those_of_transformers(
    kind: str, tmp_path: Path, cuda: pytest.MonkeyPatch
) -> None:
    directory = tiny_models.save(kind, tmp_path)
    cuda.setattr(Runner, "_settle", lambda self: None)
    mine = runner(directory, device=DEVICE)
    assert isinstance(mine.loaded.forward, CudaModel)
    cuda.undo()
    for found, expected in zip(_outputs(mine), _outputs(runner(directory)), strict=True):
        assert _far(found.logits, expected.logits) < 1e-4
        assert _far(found.states, expected.states) < 1e-4


def _far(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.cpu() - expected).abs().max())


def test_drafts_do_not_change_the_text(tmp_path: Path, cuda: pytest.MonkeyPatch) -> None:
    """Through the engine; and a runner whose rows depended on each other would not start."""
    directory = tiny_models.save("llama", tmp_path / "target", num_hidden_layers=1)
    other = tiny_models.save("llama", tmp_path / "draft", seed=1, num_hidden_layers=1)
    target = runner(directory, device=DEVICE)
    assert isinstance(target.loaded.forward, CudaModel)
    cuda.undo()
    sampling = SamplingParams(temperature=0.8, seed=5)
    prompt = _ids(20)
    plain = Pair.make(target).generate(prompt, 16, sampling=sampling)
    drafted = Pair.make(target, runner(other))
    assert drafted.generate(prompt, 16, sampling=sampling, draft_tokens=3) == plain
    assert Pair.make(target).generate(prompt, 16, sampling=sampling, method="lookahead") == plain
    target.pool.blocks.check()
