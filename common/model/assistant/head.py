"""An assistant that drafts (Gemma 4's multi-token prediction), through torch on any device.

A row is made of a token and the target's last state, or the one that the assistant makes for it:

    x = before [embedding, state];  x through layers whose attention sees the target's keys
    logits of the next token = lm norm(x);  next state = behind norm(x)

Rows of a draft stand where the token behind the target's last row does, all of them: they add no
keys, and see those of committed rows alone. So there is nothing to compute of a prompt, and
nothing to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import ModelError
from common.model.assistant.weights import AssistantWeights
from common.model.drafting_head import DraftingHead
from common.model.gathered import Gathered, groups
from common.model.kv_cache import LayerShape
from common.model.linear import few_row_products
from common.model.llama import Curve, LlamaLayer
from common.model.transfer import on_device

_FOLLOWED = 4
"""On a device, which is not kept busy by single rows."""

_CURVES: dict[Curve, Callable[[Tensor], Tensor]] = {
    Curve.SILU: F.silu,
    Curve.GELU: partial(F.gelu, approximate="tanh"),
}


class Seen(NamedTuple):
    """A text that is drafted behind."""

    state: Tensor
    """The target's last one, normed, `[t]`."""
    token: int
    """The token that was chosen from it."""
    slots: np.ndarray
    """Of the positions before that token's, whose keys the cache holds, int64 `[n]`."""


class AssistantHead(DraftingHead[Seen]):
    """An assistant ready to draft.

    Args:
        weights: Of the assistant.
        embeddings: The target's. # [V, t]
        caches: Of the target's layers, as many as `weights.seen` counts.
            # [slots, kv heads, 2 * head size] each
        dtype: To compute in.

    Raises:
        ModelError: It sees keys of other sizes.
    """

    def __init__(
        self,
        weights: AssistantWeights,
        *,
        embeddings: Tensor,
        caches: Sequence[Tensor],
        dtype: torch.dtype,
    ) -> None:
        device, llama = embeddings.device, weights.llama
        super().__init__(None, vocab_size=len(embeddings))
        self.followed = 1 if device.type == "cpu" else _FOLLOWED
        make = few_row_products(device, dtype)
        self._dtype, self.device, self._embeddings = dtype, device, embeddings
        self._scale = float(torch.tensor(embeddings.shape[1] ** 0.5, dtype=embeddings.dtype))
        self._before, self._behind = make(*weights.before), make(*weights.behind)
        self._norm = partial(_normed, epsilon=llama.epsilon)
        self._out_norm = llama.norm.to(device, torch.float32)
        self.rotaries = [rotary.to(device) for rotary in llama.rotaries]
        held = torch.float32 if device.type == "cpu" else dtype
        for shape, layer in zip(llama.shapes, weights.seen, strict=True):
            _check(shape, layer, caches[layer])
        self.layers = [
            _Layer(layer, weights, index, caches[weights.seen[index]], held, make)
            for index, layer in enumerate(weights.layers)
        ]
        self._clusters = weights.clusters
        if weights.clusters is None:
            self._lm_head = make(*llama.head)
        else:
            self._centroids = make(*weights.clusters.centroids)
            self._rows = llama.head.weight.to(device, dtype)  # [V, d]

    def groups(self, texts: Sequence[Seen]) -> list[list[int]]:
        """See `DraftingHead`."""
        sizes = {layer.sight: layer.position_bytes for layer in self.layers}
        return groups([len(text.slots) for text in texts], sum(sizes.values()), self.device)

    @torch.inference_mode()
    def draft(self, texts: Sequence[Seen]) -> _Draft:
        """See `DraftingHead`."""
        return _Draft(self, texts)

    def through(
        self, tokens: Tensor, states: Tensor, attended: Callable[[_Layer, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The states that rows leave, and their logits.

        Args:
            tokens: Of the rows, int64 `[R]`.
            states: Those before them. # [R, t]
            attended: What queries of a layer see. # [R, heads, D] -> [R, heads * D]

        Returns:
            `[R, t]`, and float32 `[R, V]`.
        """
        embedded = self._embeddings.index_select(0, tokens) * self._scale
        x = self._before(torch.cat((embedded, states.to(embedded.dtype)), dim=1).to(self._dtype))
        x = x.float()
        for layer in self.layers:
            x = layer(x, attended)
        row = self._norm(x, self._out_norm).to(self._dtype)
        return self._behind(row), self._logits(row)

    def _logits(self, rows: Tensor) -> Tensor:
        """Of all tokens; of those in clusters that a row does not take, -inf. # [R, V]"""
        if self._clusters is None:
            return self._lm_head(rows).float()
        best = self._centroids(rows).topk(self._clusters.taken, dim=1).indices
        ids = self._clusters.tokens[best].flatten(1)  # [R, n]
        found = torch.bmm(self._rows[ids], rows[:, :, None]).squeeze(2).float()
        logits = found.new_full((len(rows), self._vocab_size), -torch.inf)
        return logits.scatter_(1, ids, found)


class _Sight(NamedTuple):
    """What of a text layers see alike."""

    layer: int  # of the target, whose keys
    window: int | None


class _Layer:
    """One of the assistant's.

    Args:
        layer: Its weights.
        weights: Of the assistant.
        index: Which layer it is.
        cache: The target's, whose keys it sees.
        held: Type that they are gathered in.
        make: Makes products.
    """

    def __init__(
        self,
        layer: LlamaLayer,
        weights: AssistantWeights,
        index: int,
        cache: Tensor,
        held: torch.dtype,
        make: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]],
    ) -> None:
        self.cache, self.held, self.rotary = cache, held, layer.rotary
        self.sight = _Sight(weights.seen[index], layer.window)
        self.position_bytes = cache.shape[1] * cache.shape[2] * held.itemsize
        """That keys and values of a position take, gathered."""
        assert isinstance(layer.mlp, tuple), "no experts"
        self._size, self._scale = weights.llama.shapes[index].key_size, weights.llama.scale
        self._dtype, self._part = weights.llama.facts.dtype, layer.scale
        self._q, self._o = make(*layer.q), make(*layer.o)
        self._gate_up, self._down = make(*layer.mlp.gate_up), make(*layer.mlp.down)
        self._curve = _CURVES[weights.llama.gate.curve]
        self._norm = partial(_normed, epsilon=weights.llama.epsilon)
        norms = layer.attention_norm, layer.attention_post_norm, layer.mlp_norm, layer.mlp_post_norm
        self._norms = [None if norm is None else norm.float() for norm in norms]
        self._q_norm = None if layer.q_norm is None else layer.q_norm.float()

    def __call__(self, x: Tensor, attended: Callable[[_Layer, Tensor], Tensor]) -> Tensor:
        """Rows as they leave it. # [R, d]"""
        attention, attention_post, mlp, mlp_post = self._norms
        queries = self._q(self._norm(x, attention).to(self._dtype)).view(len(x), -1, self._size)
        seen = attended(self, self._norm(queries, self._q_norm) * self._scale)
        x = x + self._norm(self._o(seen.to(self._dtype)), attention_post)
        gate, up = self._gate_up(self._norm(x, mlp).to(self._dtype)).chunk(2, dim=1)
        made = self._down((self._curve(gate) * up).to(self._dtype))
        return (x + self._norm(made, mlp_post)) * self._part


class _Draft:
    """A draft of an assistant.

    Args:
        head: Guesses.
        texts: What it drafts behind. # [S]
    """

    def __init__(self, head: AssistantHead, texts: Sequence[Seen]) -> None:
        self._head, self._of = head, list(range(len(texts)))  # whose each row is
        self._gathered: dict[_Sight, Gathered] = {}
        for layer in head.layers:
            if layer.sight not in self._gathered:
                slots = [_seen(text.slots, layer.sight.window) for text in texts]
                self._gathered[layer.sight] = Gathered(layer.cache, slots, layer.held)
        numbers = np.array([(text.token, len(text.slots)) for text in texts])
        tokens, at = on_device(numbers.T, head.device).unbind()
        self._turns = []  # of heads, by their rotary embedding
        for frequencies, factor in head.rotaries:
            angles = at[:, None].float() * frequencies
            self._turns.append((angles.cos() * factor, angles.sin() * factor))  # [R, D / 2] each
        states = torch.stack([text.state for text in texts])
        self._states, self.logits = head.through(tokens, states, self._attended)
        """See `Draft`."""

    @torch.inference_mode()
    def further(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `Draft`."""
        self._of = [self._of[parent] for parent in parents]
        numbers = np.array([parents, tokens])
        chosen, ids = on_device(numbers, self._head.device).unbind()
        self._turns = [(cos[chosen], sin[chosen]) for cos, sin in self._turns]
        states = self._states.index_select(0, chosen)
        self._states, self.logits = self._head.through(ids, states, self._attended)
        return self.logits

    def _attended(self, layer: _Layer, queries: Tensor) -> Tensor:
        """What they see of their texts. # [R, heads, D] -> [R, heads * D]"""
        cos, sin = (part[:, None] for part in self._turns[layer.rotary])
        first, second = queries.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        none = queries.new_empty(len(queries), 0, *layer.cache.shape[1:])
        return self._gathered[layer.sight].attended(turned, self._of, none)


def _normed(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Float32; as they are without a weight."""
    return x.float() if weight is None else F.rms_norm(x.float(), weight.shape, weight, epsilon)


def _seen(slots: np.ndarray, window: int | None) -> np.ndarray:
    """What a row behind a text sees of it: of a window, as `transformers` counts for assistants,
    as many before the last one."""
    return slots if window is None else slots[-1 - window :]


def _check(shape: LayerShape, layer: int, cache: Tensor) -> None:
    """Refuses an assistant that sees keys of other sizes than a layer of its target has."""
    wanted, there = (shape.kv_heads, shape.slot_size // shape.kv_heads), tuple(cache.shape[1:])
    if wanted != there:
        raise ModelError(
            f"this assistant was made for another model: it sees {wanted[0]} keys and values of "
            f"{wanted[1]} numbers in all, of which layer {layer} of the target has {there[0]} of "
            f"{there[1]}"
        )
