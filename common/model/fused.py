"""Decoder layers of Llama's shape on CPU, in few calls.

At a handful of rows a pass costs what its calls cost, not its arithmetic. A layer here takes
four products where the original takes seven, with both residual sums inside them, and talks to
the paged cache directly. It replaces models whose layers are of
classes known to compute just this; a row still depends on nothing but itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.model.attention import AttentionContext, attend
from common.model.linear import PARALLEL_ELEMENTS, MakeProduct, Product

FUSED_CLASSES = {
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
}
"""Layer classes of `transformers` whose arithmetic is the one below."""


def _product(make: MakeProduct, *layers: nn.Linear) -> Product:
    """Layers over one input as one product."""
    return make(*joined(*layers))


def joined(*layers: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of layers over one input."""
    if len(layers) == 1:
        (layer,) = layers
        return layer.weight.data, None if layer.bias is None else layer.bias.data
    biases = [layer.bias.data for layer in layers if layer.bias is not None]
    assert len(biases) in (0, len(layers)), "biases on all parts or on none"
    weight = torch.cat([layer.weight.data for layer in layers])
    return weight, torch.cat(biases) if biases else None


class _RmsNorm:
    """Root-mean-square norm over the last dimension, in float32 and in few calls.

    What is one number a row is computed by operations that round once each: a kernel that
    contracts two would do so in its vector part and not in its tail, or the other way round.

    Args:
        *norms: What it stands in for: one, or one for each head.
    """

    def __init__(self, *norms: Any) -> None:
        weight = torch.stack([norm.weight.data for norm in norms]).squeeze(0).float()
        # The mean is a sum: x / sqrt(sum / n + e) * w  =  x / sqrt(sum + n e) * (sqrt(n) w)
        self._weight = weight * weight.shape[-1] ** 0.5
        self._epsilon = weight.shape[-1] * norms[0].variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, keepdim=True, dtype=torch.float32)
        inverse = length.square_().add_(self._epsilon).rsqrt_()
        return torch.mul(x * inverse, self._weight, out=torch.empty_like(x))


class FusedLayer:
    """One decoder layer.

    Args:
        original: The layer it stands in for, of one of `FUSED_CLASSES`.
        context: The model's cache and batch.
        make: Makes its products.
    """

    def __init__(self, original: Any, context: AttentionContext, make: MakeProduct) -> None:
        attention, mlp = original.self_attn, original.mlp
        self._context, self._layer = context, attention.layer_idx
        self._size, self._scale = attention.head_dim, attention.scaling
        self._qkv = _product(make, attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _product(make, attention.o_proj)
        self._gate_up = _product(make, mlp.gate_proj, mlp.up_proj)
        self._down = _product(make, mlp.down_proj)
        self._heads, self._kv_heads = head_counts(attention)
        self._attention_norm = _RmsNorm(original.input_layernorm)
        self._mlp_norm = _RmsNorm(original.post_attention_layernorm)
        self._window = window(attention)
        self._qk_norm: _RmsNorm | None = None
        if hasattr(attention, "q_norm"):
            norms = [attention.q_norm] * self._heads + [attention.k_norm] * self._kv_heads
            self._qk_norm = _RmsNorm(*norms)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Maps hidden states `[N, hidden]` to the next layer's.

        Args:
            x: Hidden states.
            cos: Rotary cosines of the rows, `[N, 1, D]`.
            sin: Rotary sines, `[N, 1, D]`, the sign of their first half changed: with the halves
                of a head rolled past each other that is `rotate_half`.
        """
        qkv = self._qkv(self._attention_norm(x)).view(len(x), -1, self._size)
        turning = qkv[:, : self._heads + self._kv_heads]  # [N, H + Hkv, D]
        if self._qk_norm is not None:
            turning = self._qk_norm(turning)
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
        x = self._out.plus(attended.reshape(len(x), -1), x)
        return self._down.plus(_swiglu(self._gate_up(self._mlp_norm(x))), x)


class FusedModel:
    """A causal language model of such layers.

    Args:
        original: The model it stands in for; see `can_fuse`.
        context: The model's cache and batch.
        max_len: Positions to be ready for.
        make: Makes the products of its layers.
        head: Makes that of its output layer.
    """

    def __init__(
        self,
        original: Any,
        context: AttentionContext,
        max_len: int,
        make: MakeProduct,
        head: MakeProduct,
    ) -> None:
        inner = original.model
        self._embeddings = inner.embed_tokens.weight.data  # [V, hidden]
        angles = inner.rotary_emb(self._embeddings, torch.arange(max_len)[None])
        cos, (first, second) = angles[0][0], angles[1][0].chunk(2, dim=-1)
        self._cos, self._sin = cos[:, None], torch.cat((-first, second), dim=-1)[:, None]
        self._layers = [FusedLayer(layer, context, make) for layer in inner.layers]
        self._norm = _RmsNorm(inner.norm)
        self._head = _product(head, original.lm_head)

    def __call__(self, ids: Tensor, positions: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Logits `[M, V]` and last states `[M, hidden]` of the wanted rows of a batch `[N]`."""
        x = self._embeddings.index_select(0, ids)
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        for layer in self._layers:
            x = layer(x, cos, sin)
        states = self._norm(x.index_select(0, wanted))
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


def head_counts(attention: Any) -> tuple[int, int]:
    """Query heads and key/value heads of a layer."""
    queries, keys = (layer.weight.shape[0] for layer in (attention.q_proj, attention.k_proj))
    return queries // attention.head_dim, keys // attention.head_dim


def window(attention: Any) -> int | None:
    """Keys that a row of a layer sees, itself included; None where it sees all."""
    if type(attention).__name__ == "MistralAttention":
        size: int | None = attention.config.sliding_window
        return size
    return getattr(attention, "sliding_window", None)


def _swiglu(both: Tensor) -> Tensor:
    """`silu(gate) * up` of `[N, gate + up]`.

    exp() rounds otherwise in the tail of a kernel, so no two threads may share a row.
    """
    gate, up = both.chunk(2, dim=-1)
    if gate.numel() < PARALLEL_ELEMENTS or torch.get_num_threads() == 1:
        return F.silu(gate) * up
    rows = max(1, PARALLEL_ELEMENTS // 2 // gate.shape[1])
    return torch.cat([F.silu(part) for part in gate.split(rows)]) * up
