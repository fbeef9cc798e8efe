"""Mixtures of experts, and norms over all heads, in the CUDA decoder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common.model import kernels
from common.model.hf import HfModel
from common.model.linear import TiledProduct
from common.model.llama import Curve, Gate, Linear, Mixture, Mlp
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner
from tests.tiny_models import VOCAB

pytest.importorskip("triton")

from common.model.cuda import experts as module
from common.model.cuda import grouped, reference
from common.model.cuda.experts import Experts
from common.model.cuda.keys import Size
from common.model.cuda.model import CudaModel
from common.model.cuda.products import PRODUCTS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, HIDDEN, INNER = 6, 160, 136
"""More numbers than a program reads at once."""

ROWS = 21
SILU, CLAMPED = Gate(), Gate(Curve.CLAMPED, 1.7, 2.0)

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_moe": ("qwen2_moe", {"shared_expert_intermediate_size": 48}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 9, "num_experts_per_tok": 3}),
    "flex_olmo": ("flex_olmo", {}),
    "glm4_moe_lite": ("glm4_moe_lite", {"n_shared_experts": 2, "routed_scaling_factor": 2.5}),
    "gpt_oss": ("gpt_oss", {"sliding_window": 6}),
}


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE) / 4


def _linears(outputs: int, inputs: int, *, biased: bool, seed: int) -> list[Linear]:
    weights = _random(EXPERTS, outputs, inputs, seed=seed)
    biases = _random(EXPERTS, outputs, seed=seed) if biased else [None] * EXPERTS
    return list(map(Linear, weights, biases))


def _mixture(*, biased: bool = False, **changes: Any) -> Mixture:
    gate_ups = _linears(2 * INNER, HIDDEN, biased=biased, seed=1)
    downs = _linears(HIDDEN, INNER, biased=biased, seed=2)
    asked: dict[str, Any] = {
        "router": Linear(_random(EXPERTS, HIDDEN, seed=3), None),
        "favours": None,
        "experts": list(map(Mlp, gate_ups, downs)),
        "shared": None,
        "chosen": 3,
        "sigmoid": False,
        "summed": False,
        "scale": 1.0,
    }
    return Mixture(**{**asked, **changes})


def _experts(mixture: Mixture, gate: Gate = SILU) -> Experts:
    make = partial(TiledProduct, tile=4)
    return Experts(mixture, make, gate, rounded=False)


def _words(rows: int, padding: int = 0) -> tuple[Tensor, Size]:
    """What is read of a batch: which of its rows are padding."""
    size = Size(rows=rows + padding, tiles=1, tile_rows=1, stretches=1, wanted=1)
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Has programs look at little at once."""
    monkeypatch.setattr(grouped, "_LISTED", 16)
    monkeypatch.setattr(module, "_CHUNK", 64)
    return monkeypatch


def _expected(mixture: Mixture, x: Tensor, beside: Tensor, gate: Gate = SILU) -> Tensor:
    """What rows get, row by row."""
    scores = F.linear(x, *mixture.router)
    share, scores = scores[:, EXPERTS:].sigmoid(), scores[:, :EXPERTS]
    chances = scores.sigmoid() if mixture.sigmoid else scores.softmax(1)
    weights, chosen = chances.topk(mixture.chosen)
    if mixture.summed:
        weights = weights / weights.sum(1, keepdim=True)
    out = beside * share if share.shape[1] else beside.clone()
    for row, (taken, by) in enumerate(zip(chosen.tolist(), weights * mixture.scale, strict=True)):
        for expert, weight in zip(taken, by, strict=True):
            gate_up, down = mixture.experts[expert]
            opened = reference.gated(*F.linear(x[row], *gate_up).chunk(2), gate)
            out[row] += weight * F.linear(opened, *down)
    return out


@pytest.mark.parametrize(
    ("router", "gate", "changes"),
    [
        (EXPERTS + 1, SILU, {}),
        (EXPERTS, CLAMPED, {"sigmoid": True, "summed": True, "scale": 2.5, "biased": True}),
    ],
)
def test_a_row_has_its_bits_in_any_batch(
    router: int, gate: Gate, changes: dict[str, Any], small: pytest.MonkeyPatch
) -> None:
    """Those of the formula; beside padding, which is zero, and where not all rows are computed at
    once."""
    mixture = _mixture(router=Linear(_random(router, HIDDEN, seed=3), None), **changes)
    experts = _experts(mixture, gate)
    x, beside = _random(ROWS, HIDDEN, seed=5) * 4, _random(ROWS, HIDDEN, seed=6)
    whole = experts(x, *_words(ROWS), beside)
    torch.testing.assert_close(whole, _expected(mixture, x, beside, gate), rtol=1e-4, atol=1e-4)
    for row in (0, 20):
        one = slice(row, row + 1)
        assert torch.equal(experts(x[one], *_words(1), beside[one]), whole[one])
    small.setattr(module, "_MOST_ROWS", 12)
    lost = torch.full((3, HIDDEN), float("nan"), device=DEVICE)
    padded = [torch.cat((each, lost)) for each in (x, beside)]
    found = experts(padded[0], *_words(ROWS, 3), padded[1])
    assert torch.equal(found[:ROWS], whole)
    assert not found[ROWS:].any()


def test_of_equal_experts_the_first_is_taken() -> None:
    router = Linear(torch.zeros(EXPERTS, HIDDEN, device=DEVICE), None)
    favours = torch.tensor([0.0, 1, 0, 1, 0, 1], device=DEVICE)
    experts = _experts(_mixture(router=router, favours=favours, chosen=4))
    scores = torch.zeros(2, EXPERTS, device=DEVICE)
    scores[1, 2] = float("nan")
    chosen, weights, _ = experts._choose(scores, *_words(2), 0)
    assert chosen.tolist() == [[1, 3, 5, 0]] * 2
    assert weights[0].tolist() == pytest.approx([1 / 6] * 4)
    assert not weights[1].any(), "of no number, too, distinct ones are taken"


def test_rounded_experts_are_near_and_bfloat16_chooses_by_float32() -> None:
    """All that a model multiplies by in int8; what chooses is not rounded, nor are its scores."""
    router = _random(EXPERTS, HIDDEN, seed=3).bfloat16()
    mixture = _mixture(router=Linear(router, None))
    made: list[Tensor] = []

    def make(weight: Tensor, bias: Tensor | None) -> TiledProduct:
        made.append(weight)
        return TiledProduct(weight, bias, tile=4)

    products = PRODUCTS["int8"]
    assert products.rounds_experts
    experts = Experts(mixture, make, SILU, rounded=products.rounds_experts)
    assert [weight.dtype for weight in made] == [torch.float32]
    x = (_random(9, HIDDEN, seed=5) * 4).bfloat16()
    found = experts(x, *_words(9), None).float()
    wide = _mixture(router=Linear(router.float(), None))
    expected = _expected(wide, x.float(), torch.zeros(9, HIDDEN, device=DEVICE))
    assert float((found - expected).norm() / expected.norm()) < 0.05


def test_experts_in_int4_are_refused_by_the_kernels(tmp_path: Path) -> None:
    model = HfModel(tiny_models.save("mixtral", tmp_path), torch.float32, DEVICE).llama()
    assert model is not None
    reason = "experts are rounded to int8 alone"
    assert kernels._cuda_lacks(model, torch.device("cuda"), "int4") == reason
