"""What the engine's tests share: prompts, small sizes, and a pass that fails."""

from __future__ import annotations

import random

from tests.tiny_models import VOCAB
from verifier.config import EngineConfig

TIGHT_BYTES = 21 * 16 * 2 * 2 * 2 * 12 * 2
"""20 blocks, and the one that is padding."""

SMALL = EngineConfig(max_running=4, max_waiting=4, max_batch_tokens=48)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Ids drawn at random, of each seed the same."""
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(length)]


def broken(*_: object, **__: object) -> None:
    """In place of what is to fail."""
    raise RuntimeError("boom")
