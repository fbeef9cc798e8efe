"""From a model's last states to its logits, which are not everywhere a product with a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import ModelError

_PROBE_TOKENS = 16
_TOLERANCE = 0.02
"""How far off logits may be, relative to the largest: bfloat16 rounds by a fifth of it."""


@dataclass(frozen=True)
class OutputLayer:
    """What a model does with the states after its final norm.

    Attributes:
        weight: Its output matrix. # [V, d]
        bias: Added to the product. # [V]
        factor: The sum is multiplied by it.
        softcap: Logits then become softcap * tanh(logit / softcap).
    """

    weight: Tensor
    bias: Tensor | None = None
    factor: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: Any) -> OutputLayer:
        """That of a `transformers` causal language model."""
        layer, config = model.get_output_embeddings(), model.config.get_text_config()
        return cls(
            weight=layer.weight,
            bias=getattr(layer, "bias", None),
            factor=_number(config, "logit_scale") / _number(config, "logits_scaling"),
            softcap=getattr(config, "final_logit_softcapping", None),
        )

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits of states. # [..., d] -> [..., V]"""
        logits = F.linear(hidden, self.weight, self.bias)
        if self.factor != 1:
            logits = logits * self.factor
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def _number(config: Any, name: str) -> float:
    value = getattr(config, name, None)  # MPT's has a name there, and leaves it out of its logits
    return float(value) if isinstance(value, int | float) else 1.0


@torch.no_grad()
def check(model: Any, directory: Path) -> None:
    """Compares a few logits with the model's own.

    Args:
        model: A `transformers` causal language model.
        directory: Where it came from, for the message.

    Raises:
        ModelError: They differ: what it does with its last states is not known here. Or it does not
            show these.
    """
    vocab = model.config.get_text_config().vocab_size
    ids = (torch.arange(_PROBE_TOKENS, device=model.device) % vocab)[None]
    wanted = model(input_ids=ids).logits.float()
    states = getattr(model.base_model(input_ids=ids), "last_hidden_state", None)
    if states is None:
        raise ModelError(f"{directory}: {type(model).__name__} does not show its last states here")
    found = OutputLayer.of(model)(states).float()
    if found.shape != wanted.shape or not (  # of NaN nothing is true
        (found - wanted).abs().max() <= _TOLERANCE * wanted.abs().max()
    ):
        raise ModelError(
            f"{directory}: its logits are not what its output matrix, bias, scale and cap make of "
            "its last states: nothing can be learnt from those here"
        )
