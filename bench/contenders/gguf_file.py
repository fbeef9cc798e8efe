"""A model directory as the GGUF file that llama.cpp reads: the same weights, rounded if asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, GenerationConfig

from common.errors import StartupError

_ARCHITECTURES = {"llama": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""By `model_type`; what the `gguf` package calls them."""

_SCALED_TOGETHER = 32
"""Inputs that have one scale in Q8_0."""

_ENDS = ("eos", "eot", "eom")
"""What llama.cpp calls tokens that end a text."""


def write(model: Path, dtype: str, path: Path, *, quantize: str = "none") -> None:
    """Write a model.

    Args:
        model: A directory in Hugging Face form.
        dtype: torch dtype of matrices that are not rounded, or auto for that of the file.
        path: The file to write.
        quantize: What matrices are rounded to: none, or int8, which llama.cpp calls Q8_0 and which
            has a scale for 32 inputs of an output.

    Raises:
        StartupError: It is a model that this does not know, or cannot round.
    """
    config = AutoConfig.from_pretrained(model, local_files_only=True)
    kind = config.model_type
    if kind not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise StartupError(f"{model.name}: written for llama.cpp are {known}, not {kind}")
    rope, window = config.rope_parameters, getattr(config, "sliding_window", None)
    if rope.get("rope_type", "default") != "default" or window:
        raise StartupError(f"{model.name}: not written for llama.cpp: scaled RoPE, or a window")
    architecture = getattr(gguf.MODEL_ARCH, _ARCHITECTURES[kind])
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_shape(writer, config, size)
    _add_tokens(writer, config.vocab_size, _ends(model, config))
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in _weights(model, tied=config.tie_word_embeddings):
        if kind == "llama":
            weight = _turned(name, weight, size)
        short = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if short is None:
            raise StartupError(f"{model.name}: {name} has no name in llama.cpp")
        if weight.ndim == 1:  # norms and biases, which llama.cpp takes so alone
            _add_tensor(writer, short, weight.float())
        elif quantize == "int8":
            if weight.shape[1] % _SCALED_TOGETHER:
                raise StartupError(
                    f"{model.name}: {name} has {weight.shape[1]} inputs; llama.cpp rounds "
                    f"multiples of {_SCALED_TOGETHER}"
                )
            _add_rounded(writer, short, weight)
        else:
            _add_tensor(writer, short, _typed(weight, dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: Any, size: int) -> None:
    """What is known of the model beside its weights; its heads are of `size` numbers."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _weights(model: Path, *, tied: bool) -> Iterator[tuple[str, Tensor]]:
    """Those that say something: angles, of old checkpoints, and a tied output do not."""
    for file in sorted(model.glob("*.safetensors")):
        for name, weight in load_file(file).items():
            if not (name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")):
                yield name, weight


def _typed(weight: Tensor, dtype: str) -> Tensor:
    return weight if dtype == "auto" else weight.to(getattr(torch, dtype))


def _turned(name: str, weight: Tensor, size: int) -> Tensor:
    """Rows of queries and keys as llama.cpp turns them: pairs side by side, not half a head apart.

    It does so with Llama alone; others it takes as they are.
    """
    if ".q_proj." not in name and ".k_proj." not in name:
        return weight
    heads = weight.shape[0] // size
    return weight.reshape(heads, 2, size // 2, -1).transpose(1, 2).reshape(weight.shape)


def _add_tensor(writer: Any, name: str, weight: Tensor) -> None:
    weight = weight.contiguous()
    if weight.dtype == torch.bfloat16:  # which numpy does not know
        raw = weight.view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, weight.numpy())


def _add_rounded(writer: Any, name: str, weight: Tensor) -> None:
    rounded = gguf.quants.quantize(weight.float().numpy(), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor(name, rounded, raw_dtype=gguf.GGMLQuantizationType.Q8_0)


def _ends(model: Path, config: Any) -> list[int]:
    """Ids that end a text, as `transformers` finds them."""
    try:
        ends = GenerationConfig.from_pretrained(model, local_files_only=True).eos_token_id
    except OSError:
        ends = None
    if ends is None:
        ends = config.eos_token_id
    found = ends if isinstance(ends, list) else [ends]
    if None in found or len(found) > len(_ENDS):
        raise StartupError(f"{model.name}: llama.cpp takes one to {len(_ENDS)} ends, not {ends}")
    return found


def _add_tokens(writer: Any, vocab_size: int, ends: list[int]) -> None:
    """A vocabulary of names: prompts are ids, and so is what is read of the answer."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{index}" for index in range(vocab_size)])
    writer.add_token_merges(["t 0"])  # there have to be some
    writer.add_add_bos_token(False)
    for name, index in zip(_ENDS, ends, strict=False):
        getattr(writer, f"add_{name}_token_id")(index)
