"""Models that training reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from common.errors import ModelError


def load_model(directory: Path, *, float32: bool = False) -> Any:
    """Loads a `transformers` causal language model.

    Args:
        directory: In Hugging Face form.
        float32: Whether to widen the weights, for training.

    Raises:
        ModelError: It cannot be loaded.
    """
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32 if float32 else "auto", use_safetensors=True
        )
    except Exception as error:  # transformers raises many kinds; all mean the same to the user
        raise ModelError(f"{directory}: cannot be loaded: {error}") from error
    return model.eval()


def save_model(model: Any, tokenizer: Any, directory: Path) -> None:
    """Writes a model in bfloat16 and its tokenizer, ready to be served."""
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
