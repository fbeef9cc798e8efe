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
    output_weight: Tensor | None
    """The output layer's matrix, `[V, hidden]`; None where nobody but passes needs it."""
    embeddings: Tensor
    """What tokens are as rows, `[V, hidden]`; passes read it."""
    layers: int
    """How many it has."""
    vocab_size: int
    """Rows of the output layer."""
    max_len: int
    """Positions the model was made for."""
    eos_token_ids: tuple[int, ...]
    """Ids that end a text."""
    dtype: torch.dtype
    """Of its weights."""


def ends(configured: object, vocab_size: int) -> tuple[int, ...]:
    """Ids that end a text, of what a configuration has as its `eos_token_id`.

    Args:
        configured: An id, a list of them, or None; ids that the model does not have, such as the
            -1 that some write for none, end nothing.
        vocab_size: How many it has.
    """
    ids = configured if isinstance(configured, (list, tuple)) else (configured,)
    return tuple(int(one) for one in ids if one is not None and 0 <= int(one) < vocab_size)
