"""Models that training reads and writes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.utils import logging

from common.errors import ModelError, first_line
from common.model import tensor_file, weight_files
from common.model.hf.pictures import loader_of
from training.whole import beside


def load_model(directory: Path, *, float32: bool = False) -> Any:
    """Loads a `transformers` causal language model.

    Args:
        directory: In Hugging Face form.
        float32: Whether to widen the weights, for training.

    Raises:
        ModelError: It cannot be loaded.
    """
    logging.disable_progress_bar()
    weight_files.check_access(directory)
    try:
        model = loader_of(AutoConfig.from_pretrained(directory)).from_pretrained(
            directory, dtype=torch.float32 if float32 else "auto", use_safetensors=True
        )
    except Exception as error:  # transformers raises many kinds; all mean the same to the user
        raise ModelError(f"{directory}: cannot be loaded: {first_line(error)}") from error
    return model.eval()


def load_draft(directory: Path, target: Any, *, float32: bool = False) -> Any:
    """Loads a drafter of a target, as `load_model` does.

    Raises:
        ModelError: It cannot be loaded, or has another vocabulary.
    """
    draft = load_model(directory, float32=float32)
    found, wanted = (model.config.get_text_config().vocab_size for model in (draft, target))
    if found != wanted:
        raise ModelError(
            f"{directory}: vocabulary {found}, but the target's is {wanted}: they are compared id "
            "by id here"
        )
    return draft


def save_model(model: Any, tokenizer: Any, directory: Path) -> None:
    """Writes a model in bfloat16 and its tokenizer, ready to be served: each file whole or not.

    Raises:
        RunError: They cannot be written.
    """
    logging.disable_progress_bar()
    model.to(torch.bfloat16)
    with beside(directory) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        if source := tokenizer.name_or_path:  # written anew it may be another's
            shutil.copyfile(Path(source, "tokenizer.json"), new / "tokenizer.json")
        for name in weight_files.names(new):
            tensor_file.share(new / name)
        directory.mkdir(parents=True, exist_ok=True)
        for file in new.iterdir():
            there = directory / file.name
            if there.is_dir():  # named chat templates; a folder replaces only an empty one
                shutil.rmtree(there)
            file.replace(there)
        new.rmdir()
