"""Files of EAGLE-3 heads: those that others publish, and ours, which others can read.

A directory holds `config.json` (see `common.model.eagle.config`) and `model.safetensors` or
`pytorch_model.bin` (see `common.model.eagle.tensors`). Ours is the authors' form in bfloat16, with
`paceline: {base}` in its configuration: values of the target's output matrix, see
`common.model.base_samples`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.errors import ModelError
from common.model import base_samples, tensor_file
from common.model.eagle import config as eagle_config
from common.model.eagle import tensors as eagle_tensors
from common.model.eagle.weights import EagleWeights
from common.model.rotary import Rotary
from common.model.tensors_by_key import read

WEIGHTS_FILE = "model.safetensors"
_PICKLED = "pytorch_model.bin"


def check_there(path: Path) -> None:
    """Refuses what is no directory.

    Raises:
        ModelError: It is none.
    """
    if not path.is_dir():
        raise ModelError(f"{path}: no such directory; a head of a hub has to be downloaded first")


def load(
    path: Path,
    *,
    hidden_size: int,
    vocab_size: int,
    layers: int,
    lm_head: Tensor | None = None,
) -> EagleWeights:
    """Reads a head.

    Args:
        path: Its directory.
        hidden_size: Of the target, t.
        vocab_size: Of the target, V.
        layers: Of the target.
        lm_head: The target's output matrix, which tells it from others of its size where the head
            knows its own. # [V, t]

    Raises:
        ModelError: Missing, corrupt, not supported or made for another target; names file and key.
    """
    check_there(path)
    config = eagle_config.read(path, hidden_size=hidden_size, vocab_size=vocab_size, layers=layers)
    if lm_head is not None and config.base is not None:
        assert lm_head.shape == (vocab_size, hidden_size)
        if not base_samples.match(config.base, lm_head):
            problem = "this head was trained for another model"
            raise ModelError(f"{config.file}: paceline: base: {problem}")
    files = [path / name for name in (WEIGHTS_FILE, _PICKLED) if (path / name).exists()]
    if not files:
        raise ModelError(f"{path}: holds no {WEIGHTS_FILE} and no {_PICKLED}")
    return eagle_tensors.weights_of(files[0], read(files[0], None), config, hidden_size, vocab_size)


def save(path: Path, weights: EagleWeights, *, lm_head: Tensor, config: Mapping[str, Any]) -> None:
    """Writes a head.

    Args:
        path: A directory; made where it is missing.
        weights: What to write.
        lm_head: The target's output matrix. # [V, t]
        config: With the settings that the head's rotary embeddings were made of, and the longest
            text as `max_position_embeddings`: the target's, for heads that turn as it does.
    """
    rope = eagle_config.rope_as_written(config)
    assert _turns(Rotary.configured(rope, weights.head_size)) == _turns(weights.rotary)
    path.mkdir(parents=True, exist_ok=True)
    tensor_file.save(eagle_tensors.tensors_of(weights, len(lm_head)), path / WEIGHTS_FILE)
    written = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": weights.hidden,
        "intermediate_size": weights.gate.shape[0],
        "num_hidden_layers": 1,
        "num_attention_heads": weights.heads,
        "num_key_value_heads": weights.kv_heads,
        "head_dim": weights.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": weights.epsilon,
        "max_position_embeddings": config["max_position_embeddings"],
        **rope,
        "vocab_size": lm_head.shape[0],
        "draft_vocab_size": weights.lm_head.shape[0],
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bias": weights.fc_bias is not None,
        "norm_before_residual": weights.norm_before_residual,
        **eagle_config.taps_as_written(weights.taps),
        "paceline": {"base": base_samples.of(lm_head)},
    }
    if weights.hidden != lm_head.shape[1]:  # where it is there the authors share no embeddings
        written["target_hidden_size"] = lm_head.shape[1]
    text = json.dumps(written, indent=2) + "\n"
    (path / eagle_config.FILE).write_text(text, encoding="utf-8")


def holds(path: Path, weights: EagleWeights, *, lm_head: Tensor) -> bool:
    """Whether a directory holds this head as `save` writes it.

    Args:
        path: The directory.
        weights: The head.
        lm_head: The target's output matrix. # [V, t]
    """
    vocab, hidden = lm_head.shape
    layers = weights.taps[-1] + 1
    try:
        there = load(path, hidden_size=hidden, vocab_size=vocab, layers=layers, lm_head=lm_head)
    except ModelError:
        return False
    found, wanted = eagle_tensors.tensors_of(there, vocab), eagle_tensors.tensors_of(weights, vocab)
    return (
        _facts(there) == _facts(weights)
        and found.keys() == wanted.keys()
        and all(torch.equal(found[key], value) for key, value in wanted.items())
    )


def _facts(weights: EagleWeights) -> tuple[object, ...]:
    """What a head is beside its tensors."""
    return (
        weights.taps,
        weights.head_size,
        weights.epsilon,
        weights.norm_before_residual,
        _turns(weights.rotary),
    )


def _turns(rotary: Rotary) -> list[list[float]]:
    return [part.tolist() for part in rotary]
