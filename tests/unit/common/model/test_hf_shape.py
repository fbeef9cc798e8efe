"""Models of `transformers` that are of Llama's shape run by kernels for it, to the same text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from common.model.hf import HfModel
from common.model.kernels import Kernels
from common.model.kv_cache import KvLease
from common.model.llama import Mixture
from common.model.loader import load
from common.model.runner import Runner
from common.model.segment import Segment
from tests import tiny_models
from tests.tiny_models import ARCHITECTURES, VOCAB

TOKENS = 100
"""More than the windows of some have room for."""

WHOLE, PART = 16, 12
"""Numbers of a head, and those of them that some models turn."""

_WIDE = {"hidden_size": 4 * WHOLE}
_SOME = {"rope_theta": 1e4, "partial_rotary_factor": PART / WHOLE}
_LONG = {
    **_SOME,
    "rope_type": "longrope",
    "short_factor": [1.0 + place / 8 for place in range(PART // 2)],
    "long_factor": [4.0] * (PART // 2),
    "original_max_position_embeddings": 128,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-yarn": ("llama", {"rope_parameters": _YARN}),
    "ministral": ("ministral", {}),
    "ministral3": ("ministral3", {}),
    "cwm": ("cwm", {}),
    "seed_oss": ("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    "ernie4_5": ("ernie4_5", {"head_dim": WHOLE, "use_bias": True}),
    "glm": ("glm", {"head_dim": WHOLE, "attention_bias": True}),
    "granite": (
        "granite",
        {
            "attention_multiplier": 0.1,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
        },
    ),
    "helium": ("helium", {"head_dim": 12, "attention_bias": True}),
    "exaone4": (
        "exaone4",
        {
            "head_dim": WHOLE,
            "sliding_window": 40,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma": ("gemma", {"num_key_value_heads": 1}),
    "gemma2": ("gemma2", {}),
    "gemma3": (
        "gemma3_text",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            }
        },
    ),
    "gemma3-pictures": ("gemma3", {}),
    "gemma4": ("gemma4_text", {}),
    "gemma4-large": ("gemma4_text", tiny_models.LARGE_GEMMA4),
    "gemma4-experts": ("gemma4_text", tiny_models.GEMMA4_EXPERTS),
    "gemma4-unified": ("gemma4_unified_text", {}),
    "internvl": ("internvl", {}),
    "llava": ("llava", {}),
    "llava-granite": (
        "llava",
        {
            "text_config": {
                **ARCHITECTURES["granite"],
                "model_type": "granite",
                "logits_scaling": 8.0,  # of a class that is not there
            }
        },
    ),
    "mistral3": ("mistral3", {}),
    "qwen2_vl": ("qwen2_vl", {}),
    "qwen2_5_vl": ("qwen2_5_vl", {}),
    "qwen3_vl": ("qwen3_vl", {}),
    "vaultgemma": ("vaultgemma", {"query_pre_attn_scalar": 1, "final_logit_softcapping": None}),
    "youtu": ("youtu", {"attention_bias": True}),
    "glm4": ("glm4", {"head_dim": WHOLE, "attention_bias": True}),
    "smollm3": ("smollm3", {"attention_bias": True}),
    "smollm3-still": ("smollm3", {"no_rope_layers": [0, 0]}),
    "smollm3-window": (
        "smollm3",
        {
            "sliding_window": 40,
            "use_sliding_window": False,  # which its mask does not ask for
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {}),
    "olmo3-yarn": (
        "olmo3",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": _YARN,
            }
        },
    ),
    "phi3": ("phi3", {}),
    "phi3-partial": ("phi3", {**_WIDE, "rope_parameters": {"rope_type": "default", **_SOME}}),
    "phi3-long": (
        "phi3",
        {**_WIDE, "rope_parameters": _LONG, "original_max_position_embeddings": 128},
    ),
}


_COMPILED = {
    "gemma2",
    "gemma4",
    "gemma4-large",
    "gemma4-experts",
    "gemma4-unified",
    "vaultgemma",
    "youtu",
}
"""Those that only compiled code of ours knows."""


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_its_logits_are_those_of_transformers(
    variant: str, kernels: Kernels, tmp_path: Path
) -> None:
    kind, changes = VARIANTS[variant]
    reference = tiny_models.stirred(kind, tmp_path, **changes)
    loaded = load(str(tmp_path), device="cpu", dtype="float32", kernels=kernels)
    by_torch = "packed" if variant in _COMPILED else "fused"
    assert loaded.kernels.startswith(("native", by_torch) if kernels == "auto" else by_torch)
    runner = Runner(loaded, kv_bytes=4 << 20)
    ids = _ids(TOKENS)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(_logits(runner, ids), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@torch.compiler.set_stance("force_eager")  # to compile them takes longer than all else
def test_quantised_layers_are_left_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They do more than multiply by the weights that they have, which the log says."""
    file = tiny_models.save("llama", tmp_path) / "config.json"
    how = {"linear_class": "autobitlinear", "quantization_mode": "online"}
    changed = {"quantization_config": {"quant_method": "bitnet", **how}}
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    quantised = type(reference.model.layers[0].mlp.down_proj)
    assert quantised is not torch.nn.Linear
    runner = Runner(load(str(tmp_path), device="cpu", dtype="float32"), kv_bytes=4 << 20)
    (said,) = (record.__dict__ for record in caplog.records if "left out" in record.message)
    more = "do more than multiply by their weights"
    assert said["reason"] == f"layers of class {quantised.__name__} {more}"
    ids = _ids(TOKENS)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(_logits(runner, ids), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "kind", ["llama", "smollm3", "exaone4", "gemma4_text", "glm4_moe", "gpt_oss"]
)
def test_all_of_a_model_is_on_its_device_once_it_is_taken(kind: str, tmp_path: Path) -> None:
    """Its layers are not before: a smaller device may hold them as they are rounded."""
    whole = HfModel(tiny_models.save(kind, tmp_path), torch.bfloat16, torch.device("meta"))
    for each in whole._model.modules():
        if hasattr(each, "scalar_embed_scale"):  # a number, which this device does not keep
            each.embed_scale = torch.tensor(each.scalar_embed_scale)
    model, layers = whole.llama(), whole._model.model.layers
    assert model is not None
    parts = [model.embeddings, model.norm, model.head, *model.rotaries]
    parts += model.per_layer_embeddings or ()
    assert set(_devices(parts)) == {"meta"}
    for index, layer in enumerate(model.layers):
        assert set(_devices(vars(layer).values())) == {"meta"}
        assert {each.device.type for each in layers[index + 1 :].parameters()} <= {"cpu"}


def _devices(parts: Iterable[Any]) -> Iterator[str]:
    """Of all tensors."""
    for part in parts:
        if isinstance(part, Tensor):
            yield part.device.type
        elif isinstance(part, Mixture):
            yield from _devices(vars(part).values())
        elif isinstance(part, tuple | list):
            yield from _devices(part)


@pytest.mark.parametrize(("kind", "scale"), [("granite", 14.3), ("gemma3_text", 48**0.5)])
def test_scales_are_rounded_where_transformers_rounds_them(
    kind: str, scale: float, tmp_path: Path
) -> None:
    """Granite's is a number of Python's, Gemma's one of the model's type."""
    changes = {"embedding_multiplier": scale, "residual_multiplier": 1} if kind == "granite" else {}
    directory = tiny_models.save(kind, tmp_path, **changes)
    model = HfModel(directory, torch.bfloat16, torch.device("cpu")).llama()
    assert model is not None
    rounded = float(torch.tensor(scale, dtype=torch.bfloat16))
    assert model.embedding_scale == (scale if kind == "granite" else rounded)


def _ids(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def _logits(runner: Runner, ids: list[int]) -> Tensor:
    """Of every position, `[N, V]`, computed in two passes."""
    lease = KvLease(runner.pool.blocks)
    assert lease.reserve(len(ids))
    half = len(ids) // 2
    passes = [
        runner.forward([Segment(part, at, lease.slots, wanted=range(len(part)))])
        for at, part in ((0, ids[:half]), (half, ids[half:]))
    ]
    return torch.cat([output.logits for output in passes])
