"""An EAGLE-3 head through torch, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.drafting_head import MOST_DEPTH, followed
from common.model.eagle.weights import EagleWeights
from common.model.gathered import Gathered, groups, held_type
from common.model.keyed_head import Behind, KeyedHead
from common.model.linear import few_row_products
from common.model.rotary import turned
from common.model.transfer import on_device


class _Rows(NamedTuple):
    """Rows as attention reads them."""

    x: Tensor  # what the residual stream begins with, float32 [N, d]
    read: Tensor  # [N, 2 d]


class _Turns(NamedTuple):
    """How heads of rows are turned."""

    cos: Tensor  # [N, 1, D / 2]
    sin: Tensor  # the same


class TorchHead(KeyedHead):
    """A head ready to draft.

    Of rows that were computed keys hang on x and the token alone, so that a prompt takes two
    products a row.

    Args:
        weights: Of the head.
        embeddings: The target's, used where the head has none. # [V, d]
        cache: The head's layer of the target's cache. # [slots + spare, kv_heads, 2 * head_size]
        positions: Positions a text may have.
        dtype: To compute in.
    """

    def __init__(
        self,
        weights: EagleWeights,
        *,
        embeddings: Tensor,
        cache: Tensor,
        positions: int,
        dtype: torch.dtype,
    ) -> None:
        device = cache.device
        ids = None if weights.ids is None else weights.ids.to(device)
        slots = len(cache) - weights.shape.spare
        super().__init__(ids, vocab_size=len(embeddings), slots=slots)
        self.followed = followed(device)
        self.cache, self._dtype = cache, dtype
        self.held = held_type(cache)
        """Type that keys are gathered in."""
        self.kv_heads, self.size = weights.kv_heads, weights.head_size
        self._epsilon, self._residual_normed = weights.epsilon, weights.norm_before_residual
        own = weights.embeddings
        self._embeddings = embeddings if own is None else own.to(device, dtype)
        self._norms = {
            name: getattr(weights, name).to(device, torch.float32)
            for name in ("input_norm", "hidden_norm", "mlp_norm", "norm")
        }
        turns = (part.to(device) for part in weights.rotary.table(positions + MOST_DEPTH))
        self._cos, self._sin = turns
        make = few_row_products(device, dtype)
        self._fc = make(weights.fc, weights.fc_bias)
        keys = torch.cat((weights.k, weights.v))
        self._q, self._kv = make(weights.q, None), make(keys, None)
        self._o, self._down = make(weights.o, None), make(weights.down, None)
        self._gate_up = make(torch.cat((weights.gate, weights.up)), None)
        self._lm_head = make(weights.lm_head, None)

    def groups(self, texts: Sequence[Behind]) -> list[list[int]]:
        """See `DraftingHead`."""
        row_bytes = self.kv_heads * 2 * self.size * self.held.itemsize
        return groups([text.end * row_bytes for text in texts], self.cache.device)

    @torch.inference_mode()
    def write(self, texts: Sequence[Behind]) -> None:
        """See `KeyedHead`."""
        self._write(texts)

    @torch.inference_mode()
    def draft(self, texts: Sequence[Behind]) -> _Draft:
        """See `DraftingHead`."""
        return _Draft(self, texts, self._write(texts))

    def _write(self, texts: Sequence[Behind]) -> _Rows:
        """Rows whose keys are then in the cache."""
        device = self.cache.device
        tokens = [token for text in texts for token in text.tokens]
        spans = [np.arange(text.position, text.end) for text in texts]
        slots = [text.slots[text.position : text.end] for text in texts]
        x = self._fc(torch.cat([text.states for text in texts]).to(self._dtype))
        rows = self.rows(x, on_device(tokens, device))
        turns = self.turns(on_device(np.concatenate(spans), device))
        keys, values = self.keys(rows.read, turns)
        both = torch.cat((keys, values), dim=-1).to(self.cache.dtype)
        self.cache.index_copy_(0, on_device(np.concatenate(slots), device), both)
        return rows

    def rows(self, x: Tensor, tokens: Tensor) -> _Rows:
        """Rows in the light of the tokens after them."""
        embedded = self._norm(self._embeddings.index_select(0, tokens), "input_norm")
        normed = self._norm(x, "hidden_norm")
        read = torch.cat((embedded, normed), dim=-1).to(self._dtype)
        return _Rows(normed if self._residual_normed else x.float(), read)

    def turns(self, positions: Tensor) -> _Turns:
        """How heads are turned at positions. # [N]"""
        found = (table.index_select(0, positions)[:, None] for table in (self._cos, self._sin))
        return _Turns(*found)

    def queries(self, read: Tensor, turns: _Turns) -> Tensor:
        """Turned, and scaled. # [N, heads, D]"""
        heads = self._q(read).view(len(read), -1, self.size)
        return turned(heads, *turns).mul_(self.size**-0.5)

    def keys(self, read: Tensor, turns: _Turns) -> tuple[Tensor, Tensor]:
        """Keys, turned, and values. # [N, kv heads, D] each"""
        keys, values = self._kv(read).view(len(read), 2, self.kv_heads, -1).unbind(1)
        return turned(keys, *turns), values.float()

    def through(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """From what was attended to the row's own output, and logits. # [N, d], [N, W]"""
        x = x + self._o(attended.to(self._dtype))
        inner = self._norm(x, "mlp_norm").to(self._dtype)
        gate, up = self._gate_up(inner).chunk(2, dim=-1)
        x = x + self._down((F.silu(gate) * up).to(self._dtype))
        return x, self._lm_head(self._norm(x, "norm").to(self._dtype)).float()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self._norms[name]
        return F.rms_norm(x.float(), weight.shape, weight, self._epsilon)


class _Draft:
    """A draft of such a head.

    Args:
        head: Guesses.
        texts: What it drafts behind. # [S]
        rows: Theirs, which are in the cache. # [N]
    """

    def __init__(self, head: TorchHead, texts: Sequence[Behind], rows: _Rows) -> None:
        self._head, self._ends = head, [text.end for text in texts]
        device = head.cache.device
        slots = [text.slots[: text.end] for text in texts]
        self._texts = Gathered(head.cache, slots, head.held)
        self._of = list(range(len(texts)))  # whose each row of the last depth is
        none = (len(texts), 0, head.kv_heads, 2 * head.size)
        self._aside = torch.empty(none, device=device)  # keys of drafted rows
        self._depth = 0
        last = on_device(np.cumsum([len(text.tokens) for text in texts]) - 1, device)
        x, read = (each.index_select(0, last) for each in rows)
        queries = head.queries(read, head.turns(on_device([end - 1 for end in self._ends], device)))
        attended = self._texts.attended(queries, self._of, self._aside)
        self._out, self.logits = head.through(x, attended)
        """See `Draft`."""

    @torch.inference_mode()
    def further(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `Draft`."""
        head, device = self._head, self._out.device
        self._depth += 1
        self._of = [self._of[parent] for parent in parents]
        at = [self._ends[text] - 1 + self._depth for text in self._of]
        numbers = np.array([parents, tokens, at])  # one copy for all three
        chosen, after, positions = on_device(numbers, device).unbind()
        turns = head.turns(positions)
        x, read = head.rows(self._out.index_select(0, chosen), after)
        own = torch.cat(head.keys(read, turns), dim=-1)
        self._aside = torch.cat((self._aside.index_select(0, chosen), own[:, None]), dim=1)
        attended = self._texts.attended(head.queries(read, turns), self._of, self._aside)
        self._out, self.logits = head.through(x, attended)
        return self.logits
