"""A model's own multi-token prediction layer as a drafting head, through torch on any device.

At position i it reads the state that the model leaves there, and the token at i + 1; what it leaves
is the state behind that token, from which the one at i + 2 is guessed. Further tokens are guessed
by the same layer, from its own states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from common.model.drafting_head import followed
from common.model.gathered import Gathered, groups, held_type
from common.model.keyed_head import Behind, KeyedHead
from common.model.mtp.layer import MtpLayer
from common.model.transfer import on_device


class MtpHead(KeyedHead):
    """A head ready to draft.

    Args:
        layer: The model's.
        cache: Its layer of the model's cache. # [slots, kv heads, D + V]
        vocab_size: Of the model, V.
    """

    def __init__(self, layer: MtpLayer, *, cache: Tensor, vocab_size: int) -> None:
        super().__init__(None, vocab_size=vocab_size, slots=len(cache))
        self.followed = followed(cache.device)
        self.layer, self.cache = layer, cache
        self.held = held_type(cache)
        """Type that keys are gathered in."""

    def groups(self, texts: Sequence[Behind]) -> list[list[int]]:
        """See `DraftingHead`."""
        row_bytes = self.layer.shape.slot_size * self.held.itemsize
        return groups([len(self.seen(text)) * row_bytes for text in texts], self.cache.device)

    def seen(self, text: Behind) -> np.ndarray:
        """Slots of the keys that a text's last row sees, and guesses behind it beside their own."""
        window = self.layer.window
        return text.slots[0 if window is None else max(text.end - window, 0) : text.end]

    @torch.inference_mode()
    def write(self, texts: Sequence[Behind]) -> None:
        """See `KeyedHead`."""
        spans = [np.arange(text.position, text.end) for text in texts]
        slots = [text.slots[text.position : text.end] for text in texts]
        numbers = np.stack(
            (
                np.concatenate([text.tokens for text in texts]),
                np.concatenate(spans) + 1,
                np.concatenate(slots),
            )
        )
        tokens, positions, places = on_device(numbers, self.cache.device).unbind()
        states = torch.cat([text.states for text in texts])
        keys = self.layer.keys(tokens, states, positions)
        self.cache.index_copy_(0, places, keys.to(self.cache.dtype))

    @torch.inference_mode()
    def draft(self, texts: Sequence[Behind]) -> _Draft:
        """See `DraftingHead`."""
        self.write(texts)
        return _Draft(self, texts)


class _Draft:
    """A draft of such a head.

    Args:
        head: Guesses.
        texts: What it drafts behind, whose keys are in the cache. # [S]
    """

    def __init__(self, head: MtpHead, texts: Sequence[Behind]) -> None:
        self._layer, self._device = head.layer, head.cache.device
        slots = [head.seen(text) for text in texts]
        self._texts = Gathered(head.cache, slots, head.held, key_size=head.layer.shape.key_size)
        self._of = list(range(len(texts)))  # whose each row of the last depth is
        self._at = [text.end for text in texts]  # position of its token
        self._aside = torch.empty(len(texts), 0, *head.cache.shape[1:], device=self._device)
        numbers = np.array([[text.tokens[-1] for text in texts], self._at])
        tokens, positions = on_device(numbers, self._device).unbind()
        states = torch.stack([text.states[-1] for text in texts])
        self._states, self.logits = head.layer.through(tokens, states, positions, self._attended)
        """See `Draft`."""

    @torch.inference_mode()
    def further(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `Draft`."""
        self._of = [self._of[parent] for parent in parents]
        self._at = [self._at[parent] + 1 for parent in parents]
        numbers = np.array([parents, tokens, self._at])  # one copy for all three
        chosen, after, positions = on_device(numbers, self._device).unbind()
        self._aside = self._aside.index_select(0, chosen)
        states = self._states.index_select(0, chosen)
        self._states, self.logits = self._layer.through(after, states, positions, self._beside)
        return self.logits

    def _attended(self, queries: Tensor, own: Tensor) -> Tensor:
        """Of rows whose keys are in the cache."""
        return self._texts.attended(queries, self._of, self._aside)

    def _beside(self, queries: Tensor, own: Tensor) -> Tensor:
        """Of guesses, which see those before them."""
        self._aside = torch.cat((self._aside, own[:, None]), dim=1)
        return self._texts.attended(queries, self._of, self._aside)
