"""Files of untrained EAGLE-3 heads for any small target, and heads that know what will come."""

from __future__ import annotations

import random
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common.model.eagle import checkpoint as eagle_checkpoint
from common.model.eagle.weights import EagleWeights
from common.model.keyed_head import Behind, KeyedHead
from common.model.loader import load
from common.model.rotary import Rotary
from common.model.runner import Runner
from common.model.segment import Segment

TAPS, SIZE, INNER, GUESSES = (0, 1), 12, 40, 150
ROPE = {"rope_theta": 1e4}


def write(path: Path, target: Path, *, normed: bool = False) -> Path:
    """Writes a head with random weights for a target; its residual begins normed if `normed`."""
    loaded = load(str(target), dtype="float32", device="cpu")
    output, hidden = loaded.output_weight, loaded.embeddings.shape[1]
    assert output is not None
    generator = torch.Generator().manual_seed(1)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).mul(shape[-1] ** -0.5).bfloat16()

    ids = torch.randperm(loaded.vocab_size, generator=generator)[:GUESSES].sort().values
    weights = EagleWeights(
        taps=TAPS,
        fc=matrix(hidden, len(TAPS) * hidden),
        input_norm=matrix(hidden).float() + 1,
        hidden_norm=matrix(hidden).float() + 1,
        q=matrix(4 * SIZE, 2 * hidden),
        k=matrix(2 * SIZE, 2 * hidden),
        v=matrix(2 * SIZE, 2 * hidden),
        o=matrix(hidden, 4 * SIZE),
        mlp_norm=matrix(hidden).float() + 1,
        gate=matrix(INNER, hidden),
        up=matrix(INNER, hidden),
        down=matrix(hidden, INNER),
        norm=matrix(hidden).float() + 1,
        lm_head=output[ids].bfloat16(),
        ids=ids,
        embeddings=None,
        head_size=SIZE,
        rotary=Rotary.configured(ROPE, SIZE),
        epsilon=1e-5,
        norm_before_residual=normed,
    )
    config = {**ROPE, "max_position_embeddings": loaded.max_len}
    eagle_checkpoint.save(path, weights, lm_head=output, config=config)
    return path


@dataclass
class Known:
    """A text, and the target's states at its rows, computed at once."""

    ids: Seq[int]
    states: Tensor

    @classmethod
    def of(cls, target: Runner, ids: Seq[int]) -> Known:
        lease = target.pool.lease(len(ids))
        states = target.forward([Segment(ids, 0, lease.slots, wanted=[])]).features
        lease.release()
        assert states is not None
        return cls(ids, states)


class KnowingHead(KeyedHead):
    """Guesses what comes in the texts that it knows, most of the time.

    Args:
        texts: What it knows.
        target: Their target.
        right: How often it is.
    """

    def __init__(self, texts: Seq[Known], target: Runner, right: float = 1.0) -> None:
        super().__init__(None, vocab_size=target.loaded.vocab_size, slots=target.pool.slots)
        self.followed = 2
        self._texts, self._right, self._draw = texts, right, random.Random(1)
        self.shown = 0
        """Rows."""
        self.strange: list[str] = []
        """What was not as it has to be; raised it would only cost drafts."""

    def write(self, texts: Seq[Behind]) -> None:
        for text in texts:
            self._known(text)

    def draft(self, texts: Seq[Behind]) -> KnowingDraft:
        return KnowingDraft(self, [self._known(text) for text in texts])

    def guessed(self, places: Seq[tuple[int, int] | None]) -> Tensor:
        """Logits of what comes at places of texts. # [N, V]"""
        logits = torch.zeros(len(places), self._vocab_size)
        for row, place in enumerate(places):
            wrong = self._draw.randrange(self._vocab_size)
            logits[row, wrong] = 29.0  # less than a penalty makes of what is right
            if place is not None:
                text, at = place
                right = self._draw.random() < self._right
                logits[row, [*self._texts[text].ids, 0][at]] = 40.0 if right else 28.0
        return logits

    def next(self, place: tuple[int, int] | None, token: int) -> tuple[int, int] | None:
        """The place behind a token that was guessed; nowhere where it was wrong."""
        if place is None:
            return None
        text, at = place
        ids = self._texts[text].ids
        return (text, at + 1) if at + 1 < len(ids) and ids[at] == token else None

    def _known(self, shown: Behind) -> tuple[int, int] | None:
        """What comes after rows: the text and the position of the token."""
        self.shown += len(shown.tokens)
        for number, text in enumerate(self._texts):
            states = text.states[shown.position : shown.end]
            tokens = text.ids[shown.position + 1 : shown.end + 1]
            if [*shown.tokens] == [*tokens] and torch.equal(states, shown.states):
                if len(np.unique(shown.slots[shown.position : shown.end])) < len(tokens):
                    self.strange.append(f"slots of {shown.position} to {shown.end}")
                return number, min(shown.end + 1, len(text.ids))
        self.strange.append(f"rows from {shown.position} to {shown.end}")
        return None


@dataclass
class KnowingDraft:
    """Goes on where guesses were right."""

    head: KnowingHead
    places: list[tuple[int, int] | None]
    logits: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.logits = self.head.guessed(self.places)

    def further(self, parents: Seq[int], tokens: Seq[int]) -> Tensor:
        pairs = zip(parents, tokens, strict=True)
        self.places = [self.head.next(self.places[parent], token) for parent, token in pairs]
        self.logits = self.head.guessed(self.places)
        return self.logits
