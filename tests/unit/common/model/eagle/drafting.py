"""Heads, texts and a cache to draft with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from common.model.eagle.weights import EagleWeights
from common.model.kv_cache import ZERO_SLOT
from tests.unit.common.model.eagle import small_heads
from tests.unit.common.model.eagle.plain import Text
from tests.unit.common.model.eagle.small_heads import TARGET, VOCAB

SLOTS = 200


def weights(kind: str = "") -> EagleWeights:
    """A head with numbers of about the size that training makes."""
    plain = small_heads.head(
        size=20 if "own" in kind else TARGET, some="every" not in kind, bias="bias" in kind
    )
    matrices = ("fc", "q", "k", "v", "o", "gate", "up", "down", "lm_head")
    scaled = {name: getattr(plain, name).float() for name in matrices}
    scaled = {name: each * each.shape[1] ** -0.5 for name, each in scaled.items()}
    return dataclasses.replace(plain, norm_before_residual="normed" in kind, **scaled)


def texts(lengths: Seq[int], seed: int = 0) -> list[Text]:
    """Texts of so many tokens, whose slots lie anywhere."""
    generator = torch.Generator().manual_seed(seed)
    places = 1 + torch.randperm(SLOTS - 1, generator=generator)
    made, used = [], 0
    for length in lengths:
        slots = places[used : used + length + 2].numpy().copy()  # a cache has more than it needs
        used += len(slots)
        states = torch.randn(length, 3 * TARGET, generator=generator)
        tokens = torch.randint(VOCAB, (length,), generator=generator).tolist()
        made.append(Text(states, tokens, slots))
    return made


def cache(weights: EagleWeights, fill: float = 0.0) -> Tensor:
    """Where keys go; full of what nobody is to look at."""
    shape = weights.shape
    made = torch.zeros(SLOTS + shape.spare, shape.kv_heads, 2 * shape.key_size)
    made[ZERO_SLOT + 1 :] = fill
    return made
