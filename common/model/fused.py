"""Decoder layers of Llama's shape on CPU, in few calls.

At a handful of rows a pass costs what its calls cost, not its arithmetic. A layer here takes
four products where `transformers` takes seven, with both residual sums inside them, and talks to
the paged cache directly. A row still depends on nothing but itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from common.model.attention import AttentionContext, attend
from common.model.linear import PARALLEL_ELEMENTS, MakeProduct, added
from common.model.llama import Curve, Linear, Llama, LlamaLayer, Mlp
from common.model.output import Computed
from common.model.rotary import Rotary


class _RmsNorm:
    """Root-mean-square norm over the last dimension, in float32 and in few calls.

    What is one number a row is computed by operations that round once each: a kernel that
    contracts two would do so in its vector part and not in its tail, or the other way round.

    Args:
        weight: `[D]`, or of each head, `[H, D]`.
        epsilon: What is added to the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        weight = weight.float()
        # The mean is a sum: x / sqrt(sum / n + e) * w  =  x / sqrt(sum + n e) * (sqrt(n) w)
        self._weight = weight * weight.shape[-1] ** 0.5
        self._epsilon = weight.shape[-1] * epsilon

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, keepdim=True, dtype=torch.float32)
        inverse = length.square_().add_(self._epsilon).rsqrt_()
        return torch.mul(x * inverse, self._weight, out=torch.empty_like(x))


class FusedLayer:
    """One decoder layer.

    Args:
        index: Which.
        weights: Of it.
        model: Whose it is.
        context: The model's cache and batch.
        make: Makes its products.
    """

    def __init__(
        self,
        index: int,
        weights: LlamaLayer,
        model: Llama,
        context: AttentionContext,
        make: MakeProduct,
    ) -> None:
        self._context, self._layer = context, index
        self._heads, self._scale = model.heads, model.scale
        shape = model.shapes[index]
        self._kv_heads, self._size = shape.kv_heads, shape.key_size
        self._qkv = make(*Linear.joined(weights.q, weights.k, weights.v))
        self._out = make(*weights.o)
        assert isinstance(weights.mlp, Mlp), "experts are not known here"
        assert weights.sinks is None, "nor are sinks"
        assert weights.latents is None, "nor latents"
        assert not model.norms_values, "nor norms of values"
        assert not model.seen_of, "nor shared keys"
        assert model.read_as is None, "nor ids that are read as others"
        assert weights.scale == 1, "nor factors behind a layer"
        self._gate_up, self._down = make(*weights.mlp.gate_up), make(*weights.mlp.down)
        self._attention_norm = _norm(weights.attention_norm, model)
        self._attention_post_norm = _norm(weights.attention_post_norm, model)
        self._mlp_norm = _norm(weights.mlp_norm, model)
        self._mlp_post_norm = _norm(weights.mlp_post_norm, model)
        self._curve = _CURVES[model.gate.curve]
        self._window = weights.window
        self.rotary = weights.rotary
        """Which of the model's rotary embeddings is its."""
        self._qk_norm: Callable[[Tensor], Tensor] | None = None
        if weights.q_norm is not None and weights.k_norm is not None:
            self._qk_norm = _norm_of_heads(weights.q_norm, weights.k_norm, self._kv_heads, model)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, growth: Tensor | None) -> Tensor:
        """Maps hidden states `[N, hidden]` to the next layer's.

        Args:
            x: Hidden states.
            cos: Rotary cosines of the rows, `[N, 1, D]`.
            sin: Rotary sines, `[N, 1, D]`, the sign of their first half changed: with the halves
                of a head rolled past each other that is `rotate_half`.
            growth: What queries are multiplied by, `[N, 1, 1]`.
        """
        read = x if self._attention_norm is None else self._attention_norm(x)
        qkv = self._qkv(read).view(len(x), -1, self._size)
        turning = qkv[:, : self._heads + self._kv_heads]  # [N, H + Hkv, D]
        if self._qk_norm is not None:
            turning = self._qk_norm(turning)
        half = turning.roll(self._size // 2, dims=-1)
        turned = torch.addcmul(turning * cos, half, sin)
        queries = turned[:, : self._heads]
        attended = attend(
            self._context,
            self._layer,
            queries if growth is None else queries * growth,
            torch.cat((turned[:, self._heads :], qkv[:, self._heads + self._kv_heads :]), dim=-1),
            scale=self._scale,
            window=self._window,
        )
        x = added(x, self._out, attended.reshape(len(x), -1), self._attention_post_norm)
        read = x if self._mlp_norm is None else self._mlp_norm(x)
        return added(x, self._down, _gated(self._gate_up(read), self._curve), self._mlp_post_norm)


class FusedModel:
    """A causal language model of such layers.

    Args:
        model: What it is made of; its layers are taken.
        context: The model's cache and batch.
        make: Makes the products of its layers.
        head: Makes that of its output layer.
    """

    def __init__(
        self, model: Llama, context: AttentionContext, make: MakeProduct, head: MakeProduct
    ) -> None:
        self._embeddings, self._embedding_scale = model.embeddings, model.embedding_scale
        self._feature_scale = model.feature_scale
        self._context = context
        self._rotaries, self._max_len = model.rotaries, model.facts.max_len
        self._angles: list[tuple[Tensor, Tensor]] = []
        self._growth = model.growth
        self._grown: Tensor | None = None  # its table
        made = partial(FusedLayer, model=model, context=context, make=make)
        self._layers = [*map(made, itertools.count(), model.layers)]
        self._norm = _RmsNorm(model.norm, model.epsilon)
        self._head, self._head_scale = head(*model.head), model.head_scale

    def __call__(self, ids: Tensor, positions: Tensor, wanted: Tensor) -> Computed:
        """See `Forward`."""
        self._turn_up_to(min(self._max_len, self._context.positions))
        x = self._embeddings.index_select(0, ids)
        if self._embedding_scale != 1:
            x *= self._embedding_scale
        angles = [
            (cos.index_select(0, positions), sin.index_select(0, positions))
            for cos, sin in self._angles
        ]
        growth = None if self._grown is None else self._grown.index_select(0, positions)
        taps, tapped = self._context.wanted_taps, []
        for index, layer in enumerate(self._layers):
            if index in taps:
                tapped.append(x * self._feature_scale)  # a copy: a product may take its place
            x = layer(x, *angles[layer.rotary], growth)
        if len(self._layers) in taps:
            tapped.append(self._norm(x))
        states = self._norm(x.index_select(0, wanted))
        features = torch.cat(tapped, dim=1) if tapped else None
        logits = self._head(states)
        if self._head_scale != 1:
            logits *= self._head_scale
        return Computed(logits, states, features=features)

    def _turn_up_to(self, positions: int) -> None:
        """Has tables for so many positions."""
        if not self._angles or len(self._angles[0][0]) != positions:
            self._angles = [self._table(rotary, positions) for rotary in self._rotaries]
            if self._growth is not None:
                table = self._growth.table(positions, self._embeddings.device)
                self._grown = table.to(self._embeddings.dtype)[:, None, None]

    def _table(self, rotary: Rotary, positions: int) -> tuple[Tensor, Tensor]:
        """As layers read it, `[positions, 1, D]` each."""
        cos, sin = (part.to(self._embeddings.dtype) for part in rotary.table(positions))
        return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def _norm(weight: Tensor | None, model: Llama) -> _RmsNorm | None:
    return None if weight is None else _RmsNorm(weight, model.epsilon)


def _norm_of_heads(
    q_norm: Tensor, k_norm: Tensor, kv_heads: int, model: Llama
) -> Callable[[Tensor], Tensor]:
    """A norm of queries and keys, `[N, H + Hkv, D]`: of each head, or of all at once."""
    if not model.whole_norms:
        norms = [q_norm] * model.heads + [k_norm] * kv_heads
        return _RmsNorm(torch.stack(norms), model.epsilon)
    of_queries, of_keys = _RmsNorm(q_norm, model.epsilon), _RmsNorm(k_norm, model.epsilon)

    def norm(turning: Tensor) -> Tensor:
        queries, keys = turning.flatten(1).split([len(q_norm), len(k_norm)], dim=1)
        return torch.cat((of_queries(queries), of_keys(keys)), dim=1).view(turning.shape)

    return norm


def _gelu(gate: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh")


_CURVES: dict[Curve, Callable[[Tensor], Tensor]] = {Curve.SILU: F.silu, Curve.GELU: _gelu}
"""What gates are bent by that are known here."""


def _gated(both: Tensor, curve: Callable[[Tensor], Tensor]) -> Tensor:
    """`curve(gate) * up` of `[N, gate + up]`.

    exp() rounds otherwise in the tail of a kernel, so no two threads may share a row.
    """
    gate, up = both.chunk(2, dim=-1)
    if gate.numel() < PARALLEL_ELEMENTS or torch.get_num_threads() == 1:
        return curve(gate) * up
    rows = max(1, PARALLEL_ELEMENTS // 2 // gate.shape[1])
    return torch.cat([curve(part) for part in gate.split(rows)]) * up
