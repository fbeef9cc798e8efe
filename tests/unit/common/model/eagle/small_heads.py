"""Small EAGLE-3 heads, and their files as others publish them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.eagle.weights import EagleWeights
from common.model.rotary import Rotary

TARGET, VOCAB, LAYERS = 32, 48, 12
HEADS, KV_HEADS, SIZE, INNER, GUESSES = 4, 2, 6, 20, 10

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
ROTARIES: dict[str, dict[str, Any]] = {
    "plain": {"rope_theta": 5e5},
    "llama3": {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "linear, as of old": {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "new, plain": {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    "new, llama3": {"rope_parameters": {"rope_theta": 5e5, **LLAMA3}},
    "new, yarn": {"rope_parameters": {"rope_theta": 5e5, **YARN}},
}

LAYER_KEYS = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "hidden_norm": "hidden_norm.weight",
    "input_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
}
TOP_KEYS = {
    "fc": "fc.weight",
    "fc_bias": "fc.bias",
    "norm": "norm.weight",
    "lm_head": "lm_head.weight",
    "embeddings": "embed_tokens.weight",
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Numbers that are the same each time; bfloat16."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


TAPS = "eagle_aux_hidden_state_layer_ids"

LM_HEAD = normal(VOCAB, TARGET, seed=99)


def head(
    *,
    size: int = TARGET,
    taps: tuple[int, ...] = (2, 6, 9),
    some: bool = True,
    bias: bool = False,
    rotary: Mapping[str, Any] = ROTARIES["plain"],
) -> EagleWeights:
    """A head whose every matrix is another."""
    queries, keys, guesses = HEADS * SIZE, KV_HEADS * SIZE, GUESSES if some else VOCAB
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(5))[:GUESSES]
    return EagleWeights(
        taps=taps,
        fc=normal(size, len(taps) * TARGET, seed=1),
        fc_bias=normal(size, seed=2) if bias else None,
        input_norm=normal(size, seed=3),
        hidden_norm=normal(size, seed=4),
        q=normal(queries, 2 * size, seed=5),
        k=normal(keys, 2 * size, seed=6),
        v=normal(keys, 2 * size, seed=7),
        o=normal(size, queries, seed=8),
        mlp_norm=normal(size, seed=9),
        gate=normal(INNER, size, seed=10),
        up=normal(INNER, size, seed=11),
        down=normal(size, INNER, seed=12),
        norm=normal(size, seed=13),
        lm_head=normal(guesses, size, seed=14),
        ids=ids.sort().values if some else None,
        embeddings=None if size == TARGET else normal(VOCAB, size, seed=15),
        head_size=SIZE,
        rotary=Rotary.configured(rotary, SIZE),
        epsilon=1e-5,
    )


def published(weights: EagleWeights) -> dict[str, Any]:
    """As the authors publish it, but for what they leave to defaults."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": weights.hidden,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "head_dim": SIZE,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "vocab_size": VOCAB,
        "draft_vocab_size": len(weights.lm_head),
    }


def by_key(weights: EagleWeights, layer: str = "midlayer.") -> dict[str, Tensor]:
    """A head's tensors as they are published."""
    keys = {name: layer + key for name, key in LAYER_KEYS.items()} | TOP_KEYS
    tensors = {key: getattr(weights, name) for name, key in keys.items()}
    if weights.ids is not None:
        tensors["d2t"] = weights.ids - torch.arange(len(weights.ids))
        tensors["t2d"] = torch.isin(torch.arange(VOCAB), weights.ids)
    return {key: tensor.clone() for key, tensor in tensors.items() if tensor is not None}


def write(folder: Path, config: object, tensors: Mapping[str, Tensor]) -> None:
    """Writes what may be the files of a head."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors")


def load(folder: Path, layers: int = LAYERS, lm_head: Tensor | None = None) -> EagleWeights:
    """Reads a head for the target."""
    return eagle_checkpoint.load(
        folder, hidden_size=TARGET, vocab_size=VOCAB, layers=layers, lm_head=lm_head
    )


def save(folder: Path, weights: EagleWeights, rotary: str = "plain") -> None:
    """Writes a head as ours."""
    config = {**ROTARIES[rotary], "max_position_embeddings": 256, "hidden_size": TARGET}
    eagle_checkpoint.save(folder, weights, lm_head=LM_HEAD, config=config)


def check_same(found: EagleWeights, wanted: EagleWeights) -> None:
    """Whether two heads are alike to the bit."""
    for field in fields(EagleWeights):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(other, Tensor):
            assert one.dtype == other.dtype, field.name
            assert torch.equal(one, other), field.name
        elif isinstance(other, Rotary):
            assert all(map(torch.equal, one, other))
        else:
            assert one == other, field.name
