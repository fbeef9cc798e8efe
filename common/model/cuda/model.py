"""A `transformers` model of Llama's shape on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from common.model.attention import AttentionContext
from common.model.cuda.attention import Attention
from common.model.cuda.graphs import Graphs
from common.model.cuda.keys import Size, lay_out, section, tile_rows
from common.model.cuda.products import Products
from common.model.cuda.rowwise import RmsNorm, Turn, swiglu
from common.model.fused import head_counts, joined, window
from common.model.kv_cache import KvPool, LayerShape
from common.model.linear import MakeProduct
from common.model.output import Computed, Output
from common.model.segment import Segment

_MOST_ROWS = 256
"""Of a graph; a larger pass is bound by computing, not by its launches."""

_MOST_WORDS = 1 << 21
"""Of a batch that a graph reads."""


class _Layer:
    """One decoder layer.

    Args:
        original: The layer it stands in for, of one of `FUSED_CLASSES`.
        cos: Cosines, float32 `[positions, D]`.
        sin: Sines.
        make: Makes its products.
    """

    def __init__(self, original: Any, cos: Tensor, sin: Tensor, make: MakeProduct) -> None:
        attention, mlp = original.self_attn, original.mlp
        heads, kv_heads = head_counts(attention)
        self._qkv = make(*joined(attention.q_proj, attention.k_proj, attention.v_proj))
        self._out = make(*joined(attention.o_proj))
        self._gate_up = make(*joined(mlp.gate_proj, mlp.up_proj))
        self._down = make(*joined(mlp.down_proj))
        self._attention_norm = _norm(original.input_layernorm)
        self._mlp_norm = _norm(original.post_attention_layernorm)
        norms = None
        if hasattr(attention, "q_norm"):
            norms = torch.stack((attention.q_norm.weight.data, attention.k_norm.weight.data))
        self._turn = Turn(
            heads, kv_heads, cos, sin, norms, original.input_layernorm.variance_epsilon
        )
        self._attend = Attention(
            heads, kv_heads, attention.head_dim, attention.scaling, window(attention)
        )

    def __call__(self, x: Tensor, cache: Tensor, words: Tensor, size: Size, page: int) -> Tensor:
        """Maps hidden states `[N, hidden]` to the next layer's."""
        queries = self._turn(self._qkv(self._attention_norm(x)), words, cache)
        attended = self._attend(queries, cache, words, size, page)
        x = self._out.plus(attended.view(len(x), -1), x)
        return self._down.plus(swiglu(self._gate_up(self._mlp_norm(x))), x)


class CudaModel:
    """A causal language model whose passes of few rows are graphs.

    Args:
        original: The model it stands in for, of layers of `FUSED_CLASSES`; they are taken out.
        context: Its cache.
        max_len: Positions to be ready for.
        products: What it multiplies by.
    """

    def __init__(
        self, original: Any, context: AttentionContext, max_len: int, products: Products
    ) -> None:
        inner = original.model
        attention = inner.layers[0].self_attn
        self._context, self._pool = context, context.pool
        self._embeddings: Tensor = inner.embed_tokens.weight.data  # [V, hidden]
        heads, kv_heads = head_counts(attention)
        self._shape = LayerShape(kv_heads, attention.head_dim, attention.head_dim)
        self._tile_rows = tile_rows(heads, kv_heads)
        device = self._embeddings.device
        places = torch.arange(max_len, device=device)[None]
        angles = inner.rotary_emb(self._embeddings[:1].float(), places)
        cos, sin = (angle[0].float().contiguous() for angle in angles)
        self._norm = _norm(inner.norm)
        self._head = products.head(*joined(original.lm_head))
        self._row_step = products.row_step
        self._layers = []
        for index, layer in enumerate(inner.layers):
            self._layers.append(_Layer(layer, cos, sin, products.layer))
            inner.layers[index] = nn.Identity()  # a large model is not there twice
        on_cuda = device.type == "cuda"
        self._graphs = Graphs(device) if on_cuda else None
        # Triton launches on the device that is the thread's.
        self._on_device = partial(torch.cuda.device, device) if on_cuda else nullcontext
        # Where graphs read their batch, and what all of them write.
        self._words = torch.zeros(_MOST_WORDS, dtype=torch.int32, device=device)
        vocab_size, hidden = original.lm_head.weight.shape
        self._logits = self._embeddings.new_empty(_MOST_ROWS if on_cuda else 0, vocab_size)
        self._states = self._embeddings.new_empty(len(self._logits), hidden)

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """Of the cache, by layer."""
        return dict.fromkeys(range(len(self._layers)), self._shape)

    @torch.inference_mode()
    def __call__(self, segments: Sequence[Segment]) -> Output:
        """Computes rows.

        Args:
            segments: At least one row; their slots are reserved and distinct.
        """
        pool = self._bind()
        keys = lay_out(
            segments,
            page=pool.blocks.block_tokens,
            tile_rows=self._tile_rows,
            row_step=self._row_step,
        )
        words = torch.from_numpy(keys.words)
        with self._on_device():
            if self._graphs is None or keys.size.rows > _MOST_ROWS or len(words) > _MOST_WORDS:
                logits, states = self._compute(words.to(self._words.device), keys.size, pool)
            else:
                self._words[: len(words)].copy_(words)
                compute = partial(self._in_place, keys.size, pool)
                logits, states = self._graphs.run(keys.size, compute)
            return Computed(logits[: keys.wanted].clone(), states[: keys.wanted].clone())

    def _in_place(self, size: Size, pool: KvPool) -> tuple[Tensor, Tensor]:
        """`_compute`, from and to where all graphs read and write."""
        logits, states = self._compute(self._words, size, pool)
        kept = self._logits[: size.wanted], self._states[: size.wanted]
        for place, part in zip(kept, (logits, states), strict=True):
            place.copy_(part)
        return kept

    def _compute(self, words: Tensor, size: Size, pool: KvPool) -> tuple[Tensor, Tensor]:
        """Logits `[M, V]` and states `[M, hidden]` of a batch laid out."""
        ids, wanted = section(words, size, "ids"), section(words, size, "wanted")
        x = self._embeddings.index_select(0, ids)
        for layer, cache in zip(self._layers, pool.layers, strict=True):
            x = layer(x, cache, words, size, pool.blocks.block_tokens)
        states = self._norm(x.index_select(0, wanted[: size.wanted]))
        return self._head(states), states

    def _bind(self) -> KvPool:
        """The cache; graphs of another are no more."""
        pool = self._context.pool
        assert pool is not None
        if pool is not self._pool:
            self._pool = pool
            if self._graphs is not None:
                self._graphs.clear()
        return pool


def _norm(original: Any) -> RmsNorm:
    return RmsNorm(original.weight.data, original.variance_epsilon)
