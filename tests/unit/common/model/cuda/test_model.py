"""The CUDA decoder, interpreted where there is no GPU: models of `transformers`, and one text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from common.model import independence, kernels, loader
from common.model.kv_cache import KvLease, LayerShape
from common.model.output import Output
from common.model.runner import Runner
from common.model.segment import Segment
from common.model.tree import TokenTree
from common.sampling_params import SamplingParams
from tests import tiny_models
from tests.inprocess import Pair, runner
from tests.tiny_models import VOCAB

pytest.importorskip("triton")

from common.model.cuda import model as model_module
from common.model.cuda.model import CudaModel
from tests.unit.common.model.cuda.fake_graphs import FakeGraphs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

_SMALL = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
_WINDOW = {"sliding_window": 12}
_ALL_OF_GEMMA4 = {
    **tiny_models.GEMMA4_EXPERTS,
    "num_key_value_heads": 2,  # one where all is seen
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_kv_shared_layers": 1,
    "hidden_size_per_layer_input": 8,
}


def _ids(length: int) -> list[int]:
    return np.random.default_rng(0).integers(3, VOCAB, length).tolist()


def _outputs(target: Runner) -> list[Output]:
    """A prompt longer than the window, and a tree behind it beside another text."""
    own, other = KvLease(target.pool.blocks), KvLease(target.pool.blocks)
    assert own.reserve(40)
    assert other.reserve(10)
    ids = _ids(28)
    tree = TokenTree.chain(7, (11, 12))
    tree.add_path((21, 12))
    tree.add_path((11, 33))
    batches: Sequence[list[Segment]] = (
        [Segment(ids[:18], 0, own.slots, wanted=[])],
        [
            Segment(ids[18:], 18, own.slots, wanted=[0, 9]),
            Segment(ids[:5], 0, other.slots, wanted=[4]),
        ],
        [
            Segment(ids[5:7], 5, other.slots, wanted=[1]),
            Segment(tree.ids, 28, own.slots, tree=tree, wanted=range(len(tree))),
        ],
    )
    outputs = [target.forward(batch) for batch in batches]
    for lease in (own, other):
        lease.release()
    return outputs[1:]  # of the first, none is wanted


def test_a_pass_is_laid_out_while_the_one_before_runs(
    tmp_path: Path, cuda: pytest.MonkeyPatch
) -> None:
    """And launched once that one is done."""
    cuda.setattr(Runner, "_settle", lambda self: None)
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    target = runner(tiny_models.save("llama", tmp_path, **sizes), device=DEVICE)
    model, done = target.loaded.forward, list[str]()
    assert isinstance(model, CudaModel)

    class Paced:
        def __enter__(self) -> None:
            done.append("wait")

        def __exit__(self, *_: object) -> None:
            done.append("mark")

    lay_out, run = CudaModel._lay_out, CudaModel._run
    cuda.setattr(CudaModel, "_lay_out", lambda *args: done.append("lay out") or lay_out(*args))
    cuda.setattr(CudaModel, "_run", lambda *args: done.append("run") or run(*args))
    cuda.setattr(model, "_pace", Paced())
    lease = KvLease(target.pool.blocks)
    assert lease.reserve(2)
    target.forward([Segment([5, 6], 0, lease.slots, wanted=[])])
    assert done == ["lay out", "wait", "run", "mark"]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", _SMALL),
        ("ministral3", _SMALL | _WINDOW),
        ("qwen2", _SMALL | _WINDOW | {"num_hidden_layers": 2}),  # which differ
        ("gemma2", _SMALL | _WINDOW),
        ("gemma3_text", _SMALL | _WINDOW | {"num_hidden_layers": 2}),
        ("gemma4_text", _SMALL | _WINDOW | _ALL_OF_GEMMA4),
        ("granite", _SMALL),
        ("youtu", _SMALL | {"num_key_value_heads": 2}),
    ],
)
def test_logits_and_states_are_those_of_transformers(
    kind: str, changes: dict[str, Any], tmp_path: Path, cuda: pytest.MonkeyPatch
) -> None:
    tiny_models.stirred(kind, tmp_path, **changes)
    cuda.setattr(Runner, "_settle", lambda self: None)
    mine = runner(tmp_path, device=DEVICE)
    assert isinstance(mine.loaded.forward, CudaModel)
    cuda.setattr(loader, "prepare", kernels.prepare)
    for found, expected in zip(_outputs(mine), _outputs(runner(tmp_path)), strict=True):
        assert _far(found.logits, expected.logits) < 1e-4
        assert _far(found.states, expected.states) < 1e-4


def test_passes_of_few_rows_are_graphs_of_the_cache_at_hand(
    tmp_path: Path, cuda: pytest.MonkeyPatch
) -> None:
    directory = tiny_models.save("llama", tmp_path, num_hidden_layers=1)
    cuda.setattr(Runner, "_settle", lambda self: None)
    cuda.setattr(model_module, "_MOST_ROWS", 8)
    target = runner(directory, device=DEVICE)
    model = target.loaded.forward
    assert isinstance(model, CudaModel)
    expected = _outputs(target)

    graphs = FakeGraphs.into(model, rows=8)
    found = _outputs(target)
    assert [kind.rows for kind in graphs.kinds] == [8], "one of three passes has few rows"
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.states, other.states)

    lease = KvLease(target.pool.blocks)
    assert lease.reserve(4)
    first = target.forward([Segment([5, 6, 7], 0, lease.slots, wanted=[0, 2])])
    kept = first.logits.clone()
    target.forward([Segment([8, 6, 7], 0, lease.slots, wanted=[0, 2])])
    assert torch.equal(first.logits, kept), "a result is the caller's"

    assert graphs.cleared == 0
    again = Runner(target.loaded, kv_bytes=1 << 20)
    again.forward([Segment([5], 0, np.arange(16, 32), wanted=[0])])
    assert graphs.cleared == 1, "graphs of another cache are no more"


def test_keys_are_moved_of_its_own_layers(tmp_path: Path, cuda: pytest.MonkeyPatch) -> None:
    """All are read first; and those of a head stay where they are."""
    directory = tiny_models.save("llama", tmp_path)
    cuda.setattr(Runner, "_settle", lambda self: None)
    loaded = loader.load(str(directory), device=DEVICE)
    target = Runner(loaded, kv_bytes=1 << 20, head_layers=[LayerShape(1, 8, 8)])
    assert isinstance(loaded.forward, CudaModel)
    for cache in target.pool.layers:
        cache.copy_(torch.arange(float(len(cache)))[:, None, None].expand(cache.shape))
    target.move([(40, 50), (50, 60)])
    held = [cache[[50, 60], -1, -1].tolist() for cache in target.pool.layers]
    assert held == [[40, 50]] * len(target.model_caches) + [[50, 60]]


def _far(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.cpu() - expected).abs().max())


def test_drafts_do_not_change_the_text(
    tmp_path: Path, cuda: pytest.MonkeyPatch, draws: None
) -> None:
    """Through the engine, pass after pass on the device; and a runner whose rows depended on each
    other would not start."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    directory = tiny_models.save("llama", tmp_path / "target", **sizes)
    other = tiny_models.save("llama", tmp_path / "draft", seed=1, **sizes)
    cuda.setattr(independence, "_FEW_ROWS", ((1, 2, 5, 13), (13, 1, 2, 5)))  # interpreted: slow
    target = runner(directory, "bfloat16", device=DEVICE)
    assert isinstance(target.loaded.forward, CudaModel)
    assert target.tells_of_each
    cuda.setattr(loader, "prepare", kernels.prepare)
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=5)
    prompt = _ids(12)
    plain = Pair.make(target).generate(prompt, 7, sampling=sampling)
    drafted = Pair.make(target, runner(other))
    assert drafted.generate(prompt, 7, sampling=sampling, draft_tokens=3) == plain
    assert Pair.make(target).generate(prompt, 7, sampling=sampling, method="lookahead") == plain
    target.pool.blocks.check()
