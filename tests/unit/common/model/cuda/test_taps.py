"""What entered layers, from the CUDA decoder, interpreted where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model.kv_cache import LayerShape
from common.model.loader import load
from common.model.roll import RollOptions
from common.model.runner import Runner
from common.model.segment import Segment
from common.model.tree import TokenTree
from tests import tiny_models
from tests.inprocess import runner

pytest.importorskip("triton")

from common.model.cuda import model as model_module
from common.model.cuda.model import CudaModel
from tests.unit.common.model.cuda.fake_graphs import FakeGraphs, Launches

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
TAPS = (0, 1, 2)
KV_BYTES = 1 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny_models.save("llama", tmp_path, **SIZES)


@pytest.fixture
def target(directory: Path, cuda: pytest.MonkeyPatch, draws: None) -> Runner:
    """Tapped, with a head's layer in its cache."""
    cuda.setattr(Runner, "_settle", lambda self: None)
    loaded = load(str(directory), dtype="float32", device=DEVICE)
    shape = LayerShape(1, 8, 8)
    found = Runner(loaded, kv_bytes=KV_BYTES, taps=TAPS, head_layers=[shape])
    assert isinstance(found.loaded.forward, CudaModel)
    return found


def _batches(target: Runner) -> list[list[Segment]]:
    """A pass of many rows, and one of few: a tree and another text."""
    own, other = (target.pool.lease(40).slots for _ in range(2))
    tree = TokenTree.chain(7, (11, 12))
    tree.add_path((21,))
    behind = Segment(tree.ids, 9, own, tree=tree, wanted=[3])
    return [
        [Segment(range(20, 29), 0, own, wanted=[])],
        [Segment([5, 6, 7], 0, other, wanted=[]), behind],
    ]


def _features(target: Runner) -> list[Tensor]:
    found = [target.forward(batch).features for batch in _batches(target)]
    assert None not in found
    return [each.cpu() for each in found if each is not None]


def test_features_are_those_of_the_processor_and_logits_as_without(
    directory: Path, target: Runner, cuda: pytest.MonkeyPatch
) -> None:
    cuda.setattr(model_module, "_MOST_ROWS", 8)
    model = target.loaded.forward
    assert isinstance(model, CudaModel)
    plain = runner(directory, device=DEVICE)
    untapped = plain.loaded.forward
    assert isinstance(untapped, CudaModel)
    graphs, others = (FakeGraphs.into(each, rows=8) for each in (model, untapped))
    first = _features(target)
    kept = [each.clone() for each in first]
    for mine, its in zip(_batches(target), _batches(plain), strict=True):
        found, other = target.forward(mine), plain.forward(its)
        assert torch.equal(found.logits, other.logits)
        assert torch.equal(found.states, other.states)
        assert other.features is None
    assert graphs.kinds == others.kinds * 2, "they are of the same kinds"
    assert all(map(torch.equal, first, kept)), "a result is the caller's"

    cuda.undo()
    reference = load(str(directory), dtype="float32", device="cpu")
    expected = _features(Runner(reference, kv_bytes=KV_BYTES, taps=TAPS))
    for one, right in zip(first, expected, strict=True):
        assert one.shape == right.shape
        assert (one - right).abs().max() < 1e-4


@pytest.mark.skipif(DEVICE == "cuda", reason="shown by tests/gpu")
def test_passes_that_are_captured_and_replayed_hand_out_their_own(
    target: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = target.loaded.forward
    assert isinstance(model, CudaModel)
    slots = target.pool.lease(16).slots

    def run(turn: int) -> Tensor:
        found = target.forward([Segment([5 + turn, 9], 0, slots, wanted=[1])]).features
        assert found is not None
        return found

    expected = [run(turn) for turn in range(3)]
    graphs = Launches.of(model, monkeypatch)
    for turn, right in enumerate(expected):  # as it is, captured, replayed
        assert torch.equal(run(turn), right)
    assert [graph.replays for graph in graphs] == [2]


def test_rolls_are_as_without_taps(directory: Path, target: Runner) -> None:
    plain = runner(directory, device=DEVICE)
    found = []
    for each in (target, plain):
        slots = each.pool.lease(16).slots
        segment = Segment([5, 9, 30], 0, slots, wanted=[2])
        found.append(each.roll([segment], slots[3:6, None], RollOptions(2)))
        assert found[-1].output is None
    assert np.array_equal(found[0].ids, found[1].ids)
    assert np.array_equal(found[0].behind, found[1].behind)
