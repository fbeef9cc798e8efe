"""Tiny random-weight models of every architecture the engine promises to serve.

Weights are drawn wider than usual so that greedy text does not settle into one token, and
sliding windows are short so that prompts of a few hundred tokens cross them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from common.model.hf.pictures import loader_of

VOCAB = 199
MAX_LEN = 512

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_GPT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": MAX_LEN,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GEMMA3: dict[str, Any] = {
    **_COMMON,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"],
}
_GEMMA4: dict[str, Any] = {
    **_COMMON,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 30.0,
}
_ALIKE: dict[str, Any] = {"num_global_key_value_heads": 1, "attention_k_eq_v": True}
_MOE: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_EYE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}

_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": _COMMON,
    "mistral": {**_COMMON, "sliding_window": 40},
    "ministral": {
        **_COMMON,
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "qwen2": {
        **_COMMON,
        "use_sliding_window": True,
        "sliding_window": 40,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "qwen3": {**_COMMON, "head_dim": 16},
    "gemma2": {
        **_COMMON,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 40,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": _GEMMA3,
    "gemma3": {
        "text_config": {**_GEMMA3, "model_type": "gemma3_text"},
        "vision_config": {**_EYE, "image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
        "eos_token_id": 2,
    },
    "phi": {**_COMMON, "partial_rotary_factor": 0.5},
    "phi3": {**_COMMON, "sliding_window": 40},
    "gpt2": _GPT,
    "gpt_neox": _COMMON,
    "opt": {**_COMMON, "ffn_dim": 96, "word_embed_proj_dim": 48, "init_std": 0.25},
    "olmo2": _COMMON,
    "seed_oss": {**_COMMON, "head_dim": 16},
    "cwm": {
        **_COMMON,
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "ernie4_5": _COMMON,
    "exaone4": {**_COMMON, "head_dim": 16, "sliding_window": 40, "sliding_window_pattern": 2},
    "glm": {**_COMMON, "head_dim": 16},
    "glm4": {**_COMMON, "head_dim": 16},
    "helium": {**_COMMON, "head_dim": 12},
    "granite": {
        **_COMMON,
        "attention_multiplier": 0.25,
        "embedding_multiplier": 6.0,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.3,
    },
    "starcoder2": {**_COMMON, "sliding_window": 40},
    "mixtral": {**_COMMON, **_MOE},
    "qwen3_moe": {
        **_COMMON,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
    },
    "qwen2_moe": {
        **_COMMON,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "use_sliding_window": True,
        "sliding_window": 40,
        "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
    },
    "phimoe": {**_COMMON, **_MOE, "sliding_window": 40},
    "gpt_bigcode": _GPT,
    "stablelm": {**_COMMON, "partial_rotary_factor": 0.5},
    "cohere": {**_COMMON, "logit_scale": 1.0},
    "smollm3": {**_COMMON, "no_rope_layers": [1, 0]},
    "deepseek_v3": {
        **_COMMON,
        **_LATENT,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "deepseek_v2": {**_COMMON, **_LATENT, "first_k_dense_replace": 2},
    "afmoe": {**_COMMON, "num_dense_layers": 2, "head_dim": 16, "sliding_window": 40},
    "gpt_oss": {
        **_COMMON,
        **_MOE,
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention"],
        "swiglu_limit": 1.5,  # which some numbers are beyond
    },
}

_SOME: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "head_dim": 16,
}

_QWEN_EYE: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 48,
    "patch_size": 14,
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
}
_THREE_WAYS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}


def _seeing(kind: str, eye: dict[str, Any], **text: Any) -> dict[str, Any]:
    """A model that sees pictures, whose text another model reads, or a part of its own."""
    return {
        "text_config": {**_COMMON, "model_type": kind, "head_dim": 16, **text},
        "vision_config": eye,
        "image_token_id": 10,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }


MORE: dict[str, dict[str, Any]] = {
    "dots1": {**_COMMON, **_SOME},
    "ernie4_5_moe": {
        **_COMMON,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
    },
    "exaone_moe": {
        **_COMMON,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "flex_olmo": {**_COMMON, "num_experts": 4, "num_experts_per_tok": 2},
    "gemma4_text": {
        **_GEMMA4,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
    },
    "gemma4_unified_text": {**_GEMMA4, **_ALIKE},
    "internvl": _seeing("qwen3", {**_EYE, "image_size": [28, 28], "patch_size": [14, 14]}),
    "llava": _seeing(
        "llama", {**_EYE, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 14}
    ),
    "ministral3": {
        **_COMMON,
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 16.0,
            "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "mistral3": _seeing("mistral", {**_EYE, "image_size": 28, "patch_size": 14}),
    "qwen2_5_vl": _seeing(
        "qwen2_5_vl_text", _QWEN_EYE, hidden_size=64, rope_parameters=_THREE_WAYS
    ),
    "qwen2_vl": _seeing("qwen2_vl_text", _QWEN_EYE, hidden_size=64, rope_parameters=_THREE_WAYS),
    "qwen3_vl": _seeing("qwen3_vl_text", _QWEN_EYE, rope_parameters=_THREE_WAYS),
    "qwen3_vl_moe": _seeing(
        "qwen3_vl_moe_text",
        _QWEN_EYE,
        rope_parameters=_THREE_WAYS,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
    ),
    "gemma": {**_COMMON, "head_dim": 16},
    "glm4_moe": {**_COMMON, **_SOME},
    "glm4_moe_lite": {**_COMMON, **_SOME, **_LATENT, "v_head_dim": 24},
    "hy_v3": {
        **_COMMON,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
    },
    "mellum": {
        **_COMMON,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
    },
    "minimax_m2": {**_COMMON, **_MOE, "head_dim": 16},
    "olmo3": {
        **_COMMON,
        "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "olmoe": {**_COMMON, "num_experts": 4, "num_experts_per_tok": 2},
    "solar_open": {**_COMMON, **_SOME},
    "youtu": {**_COMMON, **_LATENT},
    "vaultgemma": {**_COMMON, "head_dim": 16, "sliding_window": 40, "attn_logit_softcapping": 2.0},
}
"""Others that differ from those in little, which is tried by itself."""


def save(kind: str, directory: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Writes a random float32 model of architecture `kind` and returns its directory."""
    made = _made(kind, seed, json.dumps(changes, sort_keys=True))
    shutil.copytree(made, directory, dirs_exist_ok=True)
    torch.manual_seed(seed)  # what is drawn next does not hang on who asked first
    return directory


_STIRRED = "correction_bias", "layer_scalar"
"""How the names of buffers end that matter."""

LARGE_GEMMA4: dict[str, Any] = {
    **_ALIKE,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
}
"""What makes of a small Gemma 4, whose layers see keys of others and have embeddings of their own,
one of the large ones."""

GEMMA4_EXPERTS: dict[str, Any] = {
    **LARGE_GEMMA4,
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}
"""And what makes one with experts of it."""


def stirred(kind: str, directory: Path, **changes: Any) -> Any:
    """Writes such a model whose norms and biases are random, too: where they begin, they change
    nothing. Returns it as `transformers` computes it."""
    save(kind, directory, **changes)
    # Eager: older transformers take a kernel by default that leaves soft-capping out.
    loader = loader_of(AutoConfig.from_pretrained(directory))
    model = loader.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    buffers = [each for each in model.named_buffers() if each[0].endswith(_STIRRED)]
    for name, weight in (*model.named_parameters(), *buffers):
        if weight.dim() == 1 or name.endswith("_proj_bias"):
            weight.data += 0.3 * torch.randn(weight.shape)
    model.save_pretrained(directory)
    return model


_DIRECTORY = tempfile.TemporaryDirectory(prefix="tiny-models-")


@cache
def _made(kind: str, seed: int, changes: str) -> Path:
    """Where a model is that several tests may ask for."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**(ARCHITECTURES | MORE)[kind], **json.loads(changes)})
    model = loader_of(config).from_config(config)
    model.generation_config.eos_token_id = config.eos_token_id
    made = Path(tempfile.mkdtemp(prefix=f"{kind}-{seed}-", dir=_DIRECTORY.name))
    model.save_pretrained(made)
    return made


def text(length: int, vocab_size: int = VOCAB) -> list[int]:
    """Random ids; a longer text does not begin as a shorter one does."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, vocab_size, (length,), generator=generator).tolist()


def resized(model: Path, directory: Path, vocab_size: int) -> Path:
    """Writes a model with fewer ids, or with more: these repeat the first ones."""
    shutil.copytree(model, directory, dirs_exist_ok=True)
    weights, config = directory / "model.safetensors", directory / "config.json"
    tensors = load_file(weights)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.cat([tensors[name]] * 2)[:vocab_size].clone()
    save_file(tensors, weights, {"format": "pt"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": vocab_size}))
    return directory


def split(directory: Path, name: str) -> Path:
    """Moves a model's weights to where an index names them."""
    weights, to = directory / "model.safetensors", directory / name
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(weights), name)}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    to.parent.mkdir(exist_ok=True)
    weights.rename(to)
    return directory
