"""Mixtures of experts in the compiled decoder: to the same text as in `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from common.model import kernels
from common.model.hf import HfModel
from common.model.loader import load
from common.model.native import instructions
from common.model.quantized import Quantize
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.inprocess import runner
from tests.tiny_models import VOCAB

TOKENS = 100

_SOME = {"n_routed_experts": 4, "first_k_dense_replace": 1, "moe_intermediate_size": 32}
_LONG = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 16.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "original_max_position_embeddings": 8,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"sliding_window": 40}),
    "mixtral-one": ("mixtral", {"num_local_experts": 1, "num_experts_per_tok": 1}),
    "mixtral-all": ("mixtral", {"num_experts_per_tok": 4}),
    "qwen2_moe": ("qwen2_moe", {"shared_expert_intermediate_size": 48, "norm_topk_prob": True}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 33, "num_experts_per_tok": 5}),
    "qwen3_moe-some": ("qwen3_moe", {"mlp_only_layers": [0], "norm_topk_prob": True}),
    "qwen3_vl_moe": ("qwen3_vl_moe", {}),
    "olmoe": ("olmoe", {"norm_topk_prob": True}),
    "flex_olmo": ("flex_olmo", {}),
    "glm4_moe": ("glm4_moe", {"use_qk_norm": True, "routed_scaling_factor": 2.5}),
    "glm4_moe-more": ("glm4_moe", {"n_shared_experts": 2, "first_k_dense_replace": 0}),
    "dots1": ("dots1", {"norm_topk_prob": True, "attention_bias": True}),
    "deepseek_v2": (
        "deepseek_v2",
        {**_SOME, "num_experts_per_tok": 2, "q_lora_rank": None, "rope_interleave": False},
    ),
    "deepseek_v3": ("deepseek_v3", {"n_group": 1, "rope_parameters": _LONG}),
    "deepseek_v3-halves": (
        "deepseek_v3",
        {"n_group": 1, "rope_interleave": False, "attention_bias": True, "q_lora_rank": None},
    ),
    "glm4_moe_lite": ("glm4_moe_lite", {"routed_scaling_factor": 2.5}),
    "ernie4_5_moe": ("ernie4_5_moe", {}),
    "ernie4_5_moe-alone": ("ernie4_5_moe", {"moe_num_shared_experts": 0}),
    "exaone_moe": ("exaone_moe", {"num_shared_experts": 2, "routed_scaling_factor": 2.5}),
    "gpt_oss": ("gpt_oss", {}),
    "gpt_oss-other": (
        "gpt_oss",
        {
            "attention_bias": False,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
            "swiglu_alpha": 0.5,
            "swiglu_limit": 0.7,
        },
    ),
    "hy_v3": ("hy_v3", {"num_shared_experts": 2, "attention_bias": True}),
    "mellum": ("mellum", {}),
    "minimax_m2": ("minimax_m2", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}),
    "solar_open": ("solar_open", {"routed_scaling_factor": 2.5}),
}

_ALL = {"num_experts_per_tok": 4, "norm_topk_prob": True}
_ALL_BESIDE = {**tiny_models.GEMMA4_EXPERTS, "top_k_experts": 5}

compiled = pytest.mark.skipif(not instructions(torch.float32), reason="nothing is compiled here")


def _ids() -> list[int]:
    generator = torch.Generator().manual_seed(TOKENS)
    return torch.randint(3, VOCAB, (TOKENS,), generator=generator).tolist()


def _logits(target: Runner, rows: int) -> Tensor:
    """Of every position, `[N, V]`, so many to a pass."""
    ids, lease = _ids(), target.pool.lease(TOKENS)
    passes = []
    for at in range(0, TOKENS, rows):
        part = ids[at : at + rows]
        segment = Segment(part, at, lease.slots, wanted=range(len(part)))
        passes.append(target.forward([segment]).logits)
    lease.release()
    return torch.cat(passes)


@compiled
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    kind, changes = VARIANTS[variant]
    reference = tiny_models.stirred(kind, tmp_path, **changes)
    target = runner(tmp_path, "float32")
    assert target.loaded.kernels.startswith("native")
    with torch.inference_mode():
        expected = reference(torch.tensor([_ids()])).logits[0]
    torch.testing.assert_close(_logits(target, 64), expected, rtol=1e-3, atol=1e-3)


@compiled
def test_sinks_may_be_none_or_all(tmp_path: Path) -> None:
    reference = tiny_models.stirred("gpt_oss", tmp_path)
    for layer in reference.model.layers:
        layer.self_attn.sinks.data = torch.tensor([float("-inf"), -80.0, 0.0, 80.0])
    reference.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = reference(torch.tensor([_ids()])).logits[0]
    found = _logits(runner(tmp_path, "float32"), 7)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@compiled
@pytest.mark.parametrize(("quantize", "most"), [("none", 0.05), ("int8", 0.1)])
@pytest.mark.parametrize("kind", ["qwen2_moe", "gpt_oss", "glm4_moe_lite", "gemma4_text"])
def test_rounded_weights_are_near_and_rows_are_their_own(
    kind: str, quantize: Quantize, most: float, tmp_path: Path
) -> None:
    """All experts are taken, for what rounding chooses may be others; of several threads, too."""
    changes = _ALL_BESIDE if kind == "gemma4_text" else _ALL
    tiny_models.stirred(kind, tmp_path, **changes)
    expected = _logits(runner(tmp_path, "float32"), TOKENS)
    target = runner(tmp_path, "bfloat16", quantize=quantize, most_threads=3)
    alone = _logits(target, 1)
    assert float((alone - expected).norm() / expected.norm()) < most
    target.spread(True)
    for rows in (1, 2, 7, 64):
        assert torch.equal(_logits(target, rows), alone)


@compiled
def test_a_router_may_be_of_float32_beside_others_of_bfloat16(tmp_path: Path) -> None:
    """As transformers, from 5.24 on, holds most: its experts are those that bfloat16 cannot tell
    apart."""
    model = tiny_models.stirred("glm4_moe", tmp_path, num_experts_per_tok=1)
    for layer in model.model.layers[1:]:
        layer.mlp.gate.e_score_correction_bias.zero_()
        layer.mlp.experts.down_proj.data *= 30
        weight = layer.mlp.gate.weight.data
        weight.copy_(weight[:1].bfloat16() + 1e-4 * weight.sign())
        assert len(weight.bfloat16().unique(dim=0)) < len(weight.unique(dim=0))
    model.save_pretrained(tmp_path)
    whole = HfModel(tmp_path, torch.bfloat16, torch.device("cpu"))
    if whole._model.model.layers[1].mlp.gate.weight.dtype != torch.float32:
        pytest.skip("this release of transformers rounds it")
    native, through_torch = (
        _logits(Runner(load(str(tmp_path), dtype="bfloat16", kernels=each), kv_bytes=1 << 20), 64)
        for each in ("auto", "torch")
    )
    apart = (native - through_torch).norm(dim=1) / through_torch.norm(dim=1)
    assert apart.median() < 0.1


@compiled
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("gemma4_text", {**tiny_models.GEMMA4_EXPERTS, "moe_intermediate_size": 31}),
        ("glm4_moe_lite", {"qk_nope_head_dim": 17}),
        ("deepseek_v2", {"v_head_dim": 26}),
        (
            "deepseek_v2",
            {
                **_SOME,
                "topk_method": "group_limited_greedy",
                "n_group": 2,
                "topk_group": 1,
                "num_experts_per_tok": 2,
            },
        ),
        ("deepseek_v3", {}),
        ("glm4_moe", {"n_group": 2, "topk_group": 1}),
        ("glm4_moe", {"hidden_act": "relu"}),
        ("gpt_oss", {"intermediate_size": 31}),
        ("gpt_oss", {"swiglu_limit": -1.0}),
        ("olmoe", {"clip_qkv": 3.0}),
        ("olmoe", {"num_experts_per_tok": 0}),
        ("qwen2_moe", {"moe_intermediate_size": 31}),
        ("qwen2_moe", {"shared_expert_intermediate_size": 61}),
    ],
)
def test_what_is_not_known_goes_through_torch(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    directory = tiny_models.save(kind, tmp_path, **changes)
    assert not runner(directory, "float32").loaded.kernels.startswith("native")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("mixtral", "experts"),
        ("gemma2", "scores and logits with caps"),
        ("gemma4_text", "norms of values, and what such models have besides,"),
    ],
)
@pytest.mark.parametrize(("chosen", "says"), [("auto", True), ("torch", False)])
def test_where_nothing_is_compiled_torch_runs_them_and_the_log_says_so(
    chosen: kernels.Kernels,
    says: bool,
    kind: str,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kernels, "can_run", lambda model: False)
    directory = tiny_models.save(kind, tmp_path)
    loaded = load(str(directory), device="cpu", dtype="float32", kernels=chosen)
    assert loaded.kernels.startswith("packed")
    said = [record.reason for record in caplog.records if hasattr(record, "reason")]
    assert said == [f"{what} are for compiled code, which rounds bfloat16 alone, to int8"] * says
    assert Runner(loaded, kv_bytes=4 << 20).max_len > TOKENS
