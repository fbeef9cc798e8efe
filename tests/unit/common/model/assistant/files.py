"""Files of small Gemma 4 assistants, as `transformers` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

TARGET = "gemma4_text"
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]


def write(
    path: Path,
    target: Path,
    *,
    kind: str = "gemma4_assistant",
    ordered: bool = False,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Path:
    """Writes one with random weights.

    Args:
        path: A directory to make.
        target: What it is for.
        kind: Its type.
        ordered: Whether it guesses among tokens of a few clusters alone.
        dtype: Of its weights.
        changes: Of its configuration.
    """
    text = AutoConfig.from_pretrained(target).get_text_config()
    said = text.to_dict()
    of_full_attention = next(iter(said["per_layer_config"].values()))
    own = {
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": len(KINDS),
        "layer_types": KINDS,
        "per_layer_config": {KINDS.index("full_attention"): of_full_attention},
        "num_kv_shared_layers": len(KINDS),
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "num_experts": None,
        "top_k_experts": None,
        "tie_word_embeddings": True,
    }
    config = AutoConfig.for_model(
        kind,
        **{
            "text_config": {**said, **own},
            "backbone_hidden_size": text.hidden_size,
            "use_ordered_embeddings": ordered,
            "num_centroids": 20,
            "centroid_intermediate_top_k": 5,
            **changes,
        },
    )
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:  # where norms begin they change nothing
                weight.add_(0.3 * torch.randn_like(weight))
            elif "embed" not in name:
                weight.mul_(4)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.8)
            elif name.endswith("token_ordering"):
                buffer.copy_(torch.randperm(len(buffer)))
    model.to(dtype).save_pretrained(path)
    return path
