"""What is known of a model as it is read, whoever reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Of a causal language model."""

    kind: str
    """Its class in `transformers`."""
    parameters: int
    """How many numbers it has."""
    output_weight: Tensor
    """The output layer's matrix, `[V, hidden]`."""
    vocab_size: int
    """Rows of the output layer."""
    max_len: int
    """Positions the model was made for."""
    eos_token_ids: tuple[int, ...]
    """Ids that end a text."""
    dtype: torch.dtype
    """Of its weights."""
