"""Mixtures of experts, and norms over all heads, in the CUDA decoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from common.model import kernels
from common.model.hf import HfModel
from common.model.llama import Linear, Mixture, Mlp
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner
from tests.tiny_models import VOCAB

pytest.importorskip("triton")

from common.model.cuda import experts as module
from common.model.cuda.experts import Experts
from common.model.cuda.keys import Size
from common.model.cuda.model import CudaModel
from common.model.cuda.products import TiledProduct

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, HIDDEN, INNER = 6, 48, 40
ROWS = 37

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {}),
    "qwen2_moe": ("qwen2_moe", {"shared_expert_intermediate_size": 48}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 9, "num_experts_per_tok": 3}),
    "flex_olmo": ("flex_olmo", {}),
    "glm4_moe": ("glm4_moe", {"n_shared_experts": 2, "routed_scaling_factor": 2.5}),
    "olmo2": ("olmo2", {}),
}


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE) / 4


def _mixture(**changes: Any) -> Mixture:
    gate_up = _random(EXPERTS, 2 * INNER, HIDDEN, seed=1)
    down = _random(EXPERTS, HIDDEN, INNER, seed=2)
    asked: dict[str, Any] = {
        "router": _random(EXPERTS, HIDDEN, seed=3),
        "favours": None,
        "experts": [Mlp(Linear(gate_up[i], None), Linear(down[i], None)) for i in range(EXPERTS)],
        "shared": None,
        "chosen": 3,
        "sigmoid": False,
        "summed": False,
        "scale": 1.0,
    }
    return Mixture(**{**asked, **changes})


def _experts(mixture: Mixture) -> Experts:
    make = partial(TiledProduct, tile=4)
    return Experts(mixture, make, rounded=False, gelu=False)


def _words(rows: int, padding: int = 0) -> tuple[Tensor, Size]:
    """What is read of a batch: which of its rows are padding."""
    size = Size(rows=rows + padding, tiles=1, stretches=1, wanted=1)
    words = torch.zeros(7, rows + padding, dtype=torch.int32)
    words[module._PATH.value, :rows] = 1
    return words.flatten().to(DEVICE), size


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(
    variant: str, tmp_path: Path, cuda: pytest.MonkeyPatch
) -> None:
    kind, changes = VARIANTS[variant]
    reference = tiny_models.stirred(kind, tmp_path, **changes)
    cuda.setattr(Runner, "_settle", lambda self: None)
    target = runner(tmp_path, device=DEVICE.type)
    assert isinstance(target.loaded.forward, CudaModel)
    ids = torch.randint(3, VOCAB, (11,), generator=torch.Generator().manual_seed(4)).tolist()
    lease = target.pool.lease(len(ids))
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    passes = [
        target.forward([Segment(part, start, lease.slots, wanted=range(len(part)))]).logits
        for start, part in ((0, ids[:9]), (9, ids[9:]))
    ]
    torch.testing.assert_close(torch.cat(passes).cpu(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("changes", [{}, {"sigmoid": True, "summed": True}])
def test_a_row_has_its_bits_in_any_batch(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside padding, which is zero, and where not all rows are computed at once."""
    experts, x = _experts(_mixture(**changes)), _random(ROWS, HIDDEN, seed=5) * 8
    whole = experts(x, *_words(ROWS), None)
    for row in (0, 20, 36):
        assert torch.equal(experts(x[row : row + 1], *_words(1), None), whole[row : row + 1])
    padded = experts(torch.cat((x[:9], x[:3])), *_words(9, 3), None)
    assert torch.equal(padded[:9], whole[:9])
    assert not padded[9:].any()
    monkeypatch.setattr(module, "_MOST_ROWS", 16)
    assert torch.equal(experts(x, *_words(ROWS), None), whole)


def test_of_equal_experts_the_first_is_taken() -> None:
    router = torch.zeros(EXPERTS, HIDDEN, device=DEVICE)
    favours = torch.tensor([0.0, 1, 0, 1, 0, 1], device=DEVICE)
    experts = _experts(_mixture(router=router, favours=favours, chosen=4))
    scores = torch.zeros(2, EXPERTS, device=DEVICE)
    scores[1, 2] = float("nan")
    chosen, weights, _ = experts._choose(scores, *_words(2), 0)
    assert chosen.tolist() == [[1, 3, 5, 0]] * 2
    assert weights[0].tolist() == pytest.approx([1 / 6] * 4)
    assert not weights[1].any(), "of no number, too, distinct ones are taken"


def test_experts_in_int4_are_refused_by_the_kernels(tmp_path: Path) -> None:
    model = HfModel(tiny_models.save("mixtral", tmp_path), torch.float32, DEVICE).llama()
    assert model is not None
    reason = "experts are rounded to int8 alone"
    assert kernels._cuda_lacks(model, torch.device("cuda"), "int4") == reason
