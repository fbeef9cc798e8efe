"""Prompts for the tiny model, and how small a cache is that a few texts fill."""

from __future__ import annotations

import random

from tests.tiny_models import VOCAB

TIGHT_BYTES = 21 * 16 * 2 * 2 * 2 * 12 * 2
"""20 blocks, and the one that is padding."""


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Ids drawn at random, of each seed the same."""
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(length)]
