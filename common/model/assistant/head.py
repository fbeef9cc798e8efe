"""An assistant that drafts (Gemma 4's multi-token prediction), through torch on any device.

A row is made of a token and the target's last state, or the one that the assistant makes for it:

    x = into [embedding, state];  x through layers whose attention sees the target's keys
    logits of the next token = lm norm(x);  next state = out_of norm(x)

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
from common.model.drafting_head import DraftingHead, followed
from common.model.gathered import Gathered, groups, held_type
from common.model.kv_cache import LayerShape
from common.model.linear import few_row_products
from common.model.llama import Curve, Llama, LlamaLayer, Mlp
from common.model.rotary import turned
from common.model.transfer import on_device

_CURVES: dict[Curve, Callable[[Tensor], Tensor]] = {
    Curve.SILU: F.silu,
    Curve.GELU: partial(F.gelu, approximate="tanh"),
}

_COPIES = 3
"""Of a row's logits, while the likeliest are found."""


class Ending(NamedTuple):
    """A text that is drafted behind."""

    state: Tensor
    """The target's last one, normed, `[t]`."""
    token: int
    """The token that was chosen from it."""
    slots: np.ndarray
    """Of the positions before that token's, whose keys the cache holds, int64 `[n]`."""


class AssistantHead(DraftingHead[Ending]):
    """An assistant ready to draft.

    Args:
        weights: Of the assistant, where the target is.
        embeddings: The target's. # [V, t]
        caches: Of the target's layers, as many as `weights.sources` counts.
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
        self.followed = followed(device)
        make = few_row_products(device, dtype)
        self._dtype, self.device, self._embeddings = dtype, device, embeddings
        self._scale = float(torch.tensor(embeddings.shape[1] ** 0.5, dtype=embeddings.dtype))
        self._into, self._out_of = make(*weights.into), make(*weights.out_of)
        self._norm = partial(_normed, epsilon=llama.epsilon)
        self._out_norm = llama.norm.float()
        self.rotaries = llama.rotaries
        self.layers = [
            _Layer(layer, llama, _Sight(source, layer.window), shape, caches[source], make)
            for layer, source, shape in zip(
                weights.layers, weights.sources, llama.shapes, strict=True
            )
        ]
        self._clusters = weights.clusters
        if weights.clusters is None:
            self._lm_head = make(*llama.head)
        else:
            self._centroids = make(*weights.clusters.centroids)
            self._rows = llama.head.weight  # [V, d]

    def groups(self, texts: Sequence[Ending]) -> list[list[int]]:
        """See `DraftingHead`."""
        row_bytes = _COPIES * self._vocab_size * torch.float32.itemsize
        if self._clusters is not None:
            among = self._clusters.tokens[0].numel() * self._clusters.taken
            row_bytes += among * self._rows[0].nbytes
        seen = {layer.sight: layer for layer in self.layers}.values()
        sizes = [
            self.followed * row_bytes
            + sum(len(layer.sight.of(text.slots)) * layer.position_bytes for layer in seen)
            for text in texts
        ]
        return groups(sizes, self.device)

    @torch.inference_mode()
    def draft(self, texts: Sequence[Ending]) -> _Draft:
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
        x = self._into(torch.cat((embedded, states.to(embedded.dtype)), dim=1).to(self._dtype))
        x = x.float()
        for layer in self.layers:
            x = layer(x, attended)
        row = self._norm(x, self._out_norm).to(self._dtype)
        return self._out_of(row), self._logits(row)

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

    source: int  # layer of the target, whose keys
    window: int | None

    def of(self, slots: np.ndarray) -> np.ndarray:
        """What a row behind a text sees of its slots: of a window, as `transformers` counts for
        assistants, as many as that before the last one."""
        return slots if self.window is None else slots[-1 - self.window :]


class _Layer:
    """One of the assistant's.

    Args:
        layer: Its weights.
        llama: What has it.
        sight: What it sees.
        shape: Of the keys that it was made for.
        cache: Of those.
        make: Makes products.
    """

    def __init__(
        self,
        layer: LlamaLayer,
        llama: Llama,
        sight: _Sight,
        shape: LayerShape,
        cache: Tensor,
        make: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]],
    ) -> None:
        wanted, there = (shape.kv_heads, shape.key_size + shape.value_size), tuple(cache.shape[1:])
        if wanted != there:
            raise ModelError(
                f"this assistant was made for another model: it sees {wanted[0]} keys and values "
                f"of {wanted[1]} numbers in all, of which layer {sight.source} of the target has "
                f"{there[0]} of {there[1]}"
            )
        assert isinstance(layer.mlp, Mlp), "no experts"
        self.sight, self.rotary = sight, layer.rotary
        self.cache, self.held = cache, held_type(cache)
        self.position_bytes = cache[0].numel() * self.held.itemsize
        """That keys and values of a position take, gathered."""
        self._dtype, self._size, self._scale = llama.facts.dtype, shape.key_size, llama.scale
        self._part = layer.scale
        self._q, self._o = make(*layer.q), make(*layer.o)
        self._gate_up, self._down = make(*layer.mlp.gate_up), make(*layer.mlp.down)
        self._curve = _CURVES[llama.gate.curve]
        self._norm = partial(_normed, epsilon=llama.epsilon)
        norms = layer.attention_norm, layer.attention_post_norm, layer.mlp_norm, layer.mlp_post_norm
        self._norms = [None if norm is None else norm.float() for norm in norms]
        self._q_norm = None if layer.q_norm is None else layer.q_norm.float()

    def __call__(self, x: Tensor, attended: Callable[[_Layer, Tensor], Tensor]) -> Tensor:
        """Rows as they leave it. # [R, d]"""
        attention, attention_post, mlp, mlp_post = self._norms
        queries = self._q(self._norm(x, attention).to(self._dtype)).view(len(x), -1, self._size)
        found = attended(self, self._norm(queries, self._q_norm) * self._scale)
        x = x + self._norm(self._o(found.to(self._dtype)), attention_post)
        gate, up = self._gate_up(self._norm(x, mlp).to(self._dtype)).chunk(2, dim=1)
        made = self._down((self._curve(gate) * up).to(self._dtype))
        return (x + self._norm(made, mlp_post)) * self._part


class _Draft:
    """A draft of an assistant.

    Args:
        head: Guesses.
        texts: What it drafts behind. # [S]
    """

    def __init__(self, head: AssistantHead, texts: Sequence[Ending]) -> None:
        self._head, self._of = head, list(range(len(texts)))  # whose each row is
        self._gathered: dict[_Sight, Gathered] = {}
        for layer in head.layers:
            if layer.sight not in self._gathered:
                slots = [layer.sight.of(text.slots) for text in texts]
                self._gathered[layer.sight] = Gathered(layer.cache, slots, layer.held)
        numbers = np.array([(text.token, len(text.slots)) for text in texts])
        tokens, at = on_device(numbers.T, head.device).unbind()
        self._turns = []  # of heads, by their rotary embedding
        for frequencies, factor in head.rotaries:
            angles = at[:, None].float() * frequencies
            self._turns.append((angles.cos() * factor, angles.sin() * factor))  # [R, D / 2] each
        states = torch.stack([text.state for text in texts])
        self._states, self.logits = head.through(tokens, states, self._attended)

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
        none = queries.new_empty(len(queries), 0, *layer.cache.shape[1:])
        return self._gathered[layer.sight].attended(turned(queries, cos, sin), self._of, none)


def _normed(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """Float32; as they are without a weight."""
    return x.float() if weight is None else F.rms_norm(x.float(), weight.shape, weight, epsilon)
