"""Models that see pictures: their text alone is served, as that of any other model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

_WRAPPED = {"internvl", "llava", "mistral3"}
"""Types that read text by another model, one that could be served by itself."""

_OWN = {"qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe"}
"""Types that read it themselves: a token has three places, which are the same ones in a text."""

_BY_ANOTHER = f"{', '.join(sorted(_WRAPPED))} (by a text model that transformers has)"
KNOWN = f"{_BY_ANOTHER}, {', '.join(sorted(_OWN))}"
"""For people."""

_EYES = {"audio_tower", "multi_modal_projector", "vision_tower", "visual"}
"""Parts that nothing but pictures and sound goes through."""


_PADDED = {"Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"}
"""Classes that read what stands for pictures and sound as padding."""

_STAND_INS = "image_token_id", "video_token_id", "audio_token_id"
"""What they call these ids."""


def lacks_text_class(config: Any) -> bool:
    """Whether `transformers` has a model of this kind for pictures, and none for text alone."""
    seeing, reading = AutoModelForImageTextToText, AutoModelForCausalLM
    return type(config) in seeing._model_mapping and type(config) not in reading._model_mapping


def loader_of(config: Any) -> Any:
    """What of `transformers`' loads a model."""
    return AutoModelForImageTextToText if lacks_text_class(config) else AutoModelForCausalLM


def reader_of(config: Any) -> Any:
    """The class by which a model reads text, and whose module says how.

    Returns:
        The class, or several; None for a model that is no causal language model, and for one that
        sees pictures of which that is not known.
    """
    if not lacks_text_class(config) or config.model_type in _OWN:
        return loader_of(config)._model_mapping.get(type(config), None)
    if config.model_type in _WRAPPED:
        return AutoModelForCausalLM._model_mapping.get(type(config.get_text_config()), None)
    return None


def read_as(model: Any, device: torch.device) -> Tensor | None:
    """The id whose embeddings an id has, `[V]`; None where each has its own.

    Gemma 4 reads ids that stand for pictures and sound as padding, and what is seen or heard takes
    its place, if there is anything.
    """
    text = model.config.get_text_config()
    padding = text.pad_token_id
    if type(model).__name__ not in _PADDED or padding not in range(text.vocab_size):
        return None
    standing = [getattr(model.config, name, None) for name in _STAND_INS]
    ids = [padding if each in standing else each for each in range(text.vocab_size)]
    return torch.tensor(ids, device=device)


def blind(model: Any) -> None:
    """Takes out of a model what only pictures and sound go through."""
    body = getattr(model, "model", None)
    for name in _EYES:
        if isinstance(getattr(body, name, None), nn.Module):
            setattr(body, name, nn.Identity())
