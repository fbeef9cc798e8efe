"""Models that see pictures: their text alone is served, as that of any other model."""

from __future__ import annotations

from typing import Any

from torch import nn
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


def blind(model: Any) -> None:
    """Takes out of a model what only pictures and sound go through."""
    body = getattr(model, "model", None)
    for name in _EYES:
        if isinstance(getattr(body, name, None), nn.Module):
            setattr(body, name, nn.Identity())
