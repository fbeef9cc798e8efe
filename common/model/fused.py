"""Decoder layers of Llama's shape on CPU, in few calls.

At a handful of rows a pass costs what its calls cost, not its arithmetic. A layer here takes
five products where the original takes seven, with activation, gating and both residual sums
inside them, and talks to the paged cache directly. It replaces models whose layers are of
classes known to compute just this; a row still depends on nothing but itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from common.model.attention import AttentionContext, attend

FUSED_CLASSES = {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
}
"""Layer classes of `transformers` whose arithmetic is the one below."""


class _Product:
    """A linear layer packed for oneDNN, with what follows it done inside."""

    def __init__(self, *layers: nn.Linear) -> None:
        weight = torch.cat([layer.weight.data for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        assert len(biases) in (0, len(layers)), "biases on all parts or on none"
        self._bias = torch.cat([bias.data for bias in biases]) if biases else None
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, then: str = "none") -> Tensor:
        """`then(W x + b)`; `then` is "none" or "swish"."""
        out: Tensor = self._plain(x, self._packed, self._bias, then, [], "")
        return out

    def with_other(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """`(W x + b) how other`; `how` is "add" or "mul"."""
        out: Tensor = self._binary(x, other, self._packed, self._bias, how)
        return out


class FusedLayer:
    """One decoder layer.

    Args:
        original: The layer it stands in for, of one of `FUSED_CLASSES`.
        context: The model's cache and batch.
    """

    def __init__(self, original: Any, context: AttentionContext) -> None:
        attention, mlp = original.self_attn, original.mlp
        self._context, self._layer = context, attention.layer_idx
        self._size, self._scale = attention.head_dim, attention.scaling
        self._qkv = _Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _Product(attention.o_proj)
        self._gate, self._up = _Product(mlp.gate_proj), _Product(mlp.up_proj)
        self._down = _Product(mlp.down_proj)
        self._heads = attention.q_proj.weight.shape[0] // self._size
        self._kv_heads = attention.k_proj.weight.shape[0] // self._size
        self._norms = [
            (norm.weight.data, norm.variance_epsilon)
            for norm in (original.input_layernorm, original.post_attention_layernorm)
        ]
        self._window = _window(attention)
        self._qk_norm: tuple[Tensor, float] | None = None
        if hasattr(attention, "q_norm"):
            weights = [attention.q_norm.weight.data] * self._heads
            weights += [attention.k_norm.weight.data] * self._kv_heads
            self._qk_norm = torch.stack(weights), attention.q_norm.variance_epsilon

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Maps hidden states `[N, hidden]` to the next layer's.

        Args:
            x: Hidden states.
            cos: Rotary cosines of the rows, `[N, 1, D]`.
            sin: Rotary sines, `[N, 1, D]`, the sign of their first half changed: with the halves
                of a head rolled past each other that is `rotate_half`.
        """
        qkv = self._qkv(_rms_norm(x, *self._norms[0])).view(len(x), -1, self._size)
        turning = qkv[:, : self._heads + self._kv_heads]  # [N, H + Hkv, D]
        if self._qk_norm is not None:
            turning = _rms_norm(turning, *self._qk_norm)
        half = turning.roll(self._size // 2, dims=-1)
        turned = torch.addcmul(turning * cos, half, sin)
        attended = attend(
            self._context,
            self._layer,
            turned[:, : self._heads],
            torch.cat((turned[:, self._heads :], qkv[:, self._heads + self._kv_heads :]), dim=-1),
            scale=self._scale,
            window=self._window,
        )
        x = self._out.with_other(attended.view(len(x), -1), x, "add")
        y = _rms_norm(x, *self._norms[1])
        y = self._up.with_other(y, self._gate(y, "swish"), "mul")
        return self._down.with_other(y, x, "add")


class FusedModel:
    """A causal language model of such layers.

    Args:
        original: The model it stands in for; see `can_fuse`.
        context: The model's cache and batch.
        max_len: Positions to be ready for.
    """

    def __init__(self, original: Any, context: AttentionContext, max_len: int) -> None:
        inner = original.model
        self._embeddings = inner.embed_tokens.weight.data  # [V, hidden]
        angles = inner.rotary_emb(self._embeddings, torch.arange(max_len)[None])
        cos, (first, second) = angles[0][0], angles[1][0].chunk(2, dim=-1)
        self._cos, self._sin = cos[:, None], torch.cat((-first, second), dim=-1)[:, None]
        self._layers = [FusedLayer(layer, context) for layer in inner.layers]
        self._norm = (inner.norm.weight.data, inner.norm.variance_epsilon)
        self._head = _Product(original.lm_head)

    def __call__(self, ids: Tensor, positions: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[M, V]` and last states `[M, hidden]` of the wanted rows of a batch `[N]`."""
        x = self._embeddings.index_select(0, ids)
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        for layer in self._layers:
            x = layer(x, cos, sin)
        states = _rms_norm(x.index_select(0, wanted), *self._norm)
        return self._head(states), states


def can_fuse(model: Any) -> bool:
    """Whether every layer of a model is of a class known to compute what `FusedLayer` does.

    Models whose weights a tensor-parallel plan has split are left as they are.
    """
    layers = getattr(getattr(model, "model", None), "layers", ())
    return bool(layers) and all(
        type(layer).__name__ in FUSED_CLASSES
        and type(layer.mlp.act_fn).__name__ in _SWISH
        and type(layer.mlp.gate_proj.weight.data) is Tensor
        for layer in layers
    )


_SWISH = {"SiLU", "SiLUActivation"}


def _window(attention: Any) -> int | None:
    if type(attention).__name__ == "MistralAttention":
        window: int | None = attention.config.sliding_window
        return window
    return getattr(attention, "sliding_window", None)


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * inverse).to(x.dtype) * weight
