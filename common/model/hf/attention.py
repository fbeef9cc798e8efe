"""Attention over the paged cache, for every model that goes through `AttentionInterface`."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from common.errors import ModelError
from common.model.attention import AttentionContext, attend

NAME = "paceline"
"""The attention implementation's name in `transformers`' registry."""

_CONTEXT = "paceline_context"


class Mask(NamedTuple):
    """Stands where `transformers` would have a mask, while shapes are being learnt."""

    window: int | None
    """Keys that a row sees, itself included; all where None."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ModelError(
            "its attention computes with its mask; tokens must see all before them, or a window"
        )


def register() -> None:
    """Makes `attn_implementation=NAME` known to `transformers`."""
    AttentionInterface.register(NAME, paged_attention)
    AttentionMaskInterface.register(NAME, mask)


def decoder(model: nn.Module) -> nn.Module:
    """What of a model reads text: others may see pictures, with attention of their own."""
    if isinstance(model, PreTrainedModel):
        found: nn.Module = model.get_decoder()
        return found
    return model


def layers(model: nn.Module) -> list[nn.Module]:
    """The attention layers of a model's decoder, or of a part of it."""
    return [
        module
        for module in decoder(model).modules()
        if hasattr(module, "layer_idx") and "attention" in type(module).__name__.lower()
    ]


def attach(model: nn.Module, context: AttentionContext) -> None:
    """Gives every attention layer of a model the context."""
    for module in layers(model):
        setattr(module, _CONTEXT, context)


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attends new rows to the cache; the signature is `transformers`'.

    Args:
        module: The layer; carries `layer_idx` and our context.
        query: `[1, H, N, D]`.
        key: `[1, Hkv, N, D]`.
        value: `[1, Hkv, N, Dv]`.
        attention_mask: Not used but to learn the window: positions say everything else.
        scaling: Factor on the scores; D ** -0.5 where None.
        dropout: Not used: we never train through this.
        sliding_window: Keys a row sees, itself included; as the mask says where None.
        softcap: Scores become softcap * tanh(score / softcap).
        s_aux: Attention sink of each head, `[H]`.

    Returns:
        `[1, N, H, Dv]`, and None for the weights.

    Raises:
        ModelError: The layer's window is not that of its mask.
    """
    context: AttentionContext = getattr(module, _CONTEXT)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if context.pool is None:
        context.windows[layer] = window(layer, attention_mask, sliding_window)
    out = attend(
        context,
        layer,
        query[0].transpose(0, 1),
        torch.cat((key[0], value[0]), dim=-1).transpose(0, 1),
        scale=query.shape[3] ** -0.5 if scaling is None else scaling,
        window=context.windows[layer],
        softcap=softcap,
        sinks=s_aux,
    )
    return out[None].contiguous(), None


def window(layer: int, mask: Mask | Tensor | None, said: int | None) -> int | None:
    """The window of a layer, which some models have in their masks alone."""
    masked = mask.window if isinstance(mask, Mask) else None
    if said is not None and masked is not None and said != masked:
        raise ModelError(f"layer {layer} has a window of {said} keys, and its mask of {masked}")
    return masked if said is None else said


def mask(*_: Any, local_size: int | None = None, **__: Any) -> Mask:
    """Masks are ours; `transformers` need not build any."""
    return Mask(local_size)
