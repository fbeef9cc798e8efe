"""A model of a size with random weights, for what hangs on the size alone: the time of a step.

    python -m bench.random_model 8b /tmp/random-8b
    paceline bench --roofline --target /tmp/random-8b --device cuda

Weights are made where there is a GPU on it. There is no tokenizer: it cannot be served.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.arguments import ending_well

SHAPES: dict[str, dict[str, Any]] = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 512,
    },
}
"""Of Llama's family, the first two as its third generation has them."""


def write(shape: str, directory: Path) -> None:
    """Write a bfloat16 model.

    Args:
        shape: One of `SHAPES`.
        directory: Where to.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from common.model import tensor_file

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = LlamaForCausalLM(LlamaConfig(**SHAPES[shape], tie_word_embeddings=False))
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(directory)
    for written in directory.glob("*.safetensors"):
        tensor_file.share(written)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.random_model")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    with ending_well():
        write(arguments.shape, arguments.directory)
