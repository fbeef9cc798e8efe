"""A `transformers` model for the compiled decoder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from common.model.attention import AttentionContext
from common.model.batch import Segment
from common.model.fused import can_fuse, head_counts, joined, window
from common.model.kv_cache import LayerShape
from common.model.native.library import Batch, Decoder, Ends, Layer, Model, Product, available
from common.model.native.product import PackedMatrix

_FEW_ROWS = 6
"""Up to so many, reading the weights takes longer than computing: more threads gain nothing."""

_OF_ONE_TEXT = 12
"""Up to so many rows of a single text may be a draft, whose drafter needs the processors."""

_WORD = 8
"""Bytes of an index."""


class Certainty(NamedTuple):
    """How likely tokens are right, and how likely what is still computed has to be."""

    bounds: np.ndarray
    """Rising, float32 `[ranges - 1]`: of how far the second largest logit is behind the largest."""
    chances: np.ndarray
    """That the likeliest token is right, float32 `[ranges]`."""
    least: Sequence[float]
    """A row whose chances multiply to less goes no further, `[M]`; 0 has it go on."""
    from_level: Sequence[int]
    """The level whose token is the first that counts, `[M]`; 0 is what follows the row."""


class Rolled(NamedTuple):
    """The likeliest tokens of rows, and of those that follow them, level by level."""

    ids: np.ndarray
    """The likeliest first, of equally likely ones the lowest; `[levels + 1, M, best]`. -1 where a
    row had gone far enough."""
    behind: np.ndarray
    """How much less their logits are than the largest, float32; the same shape."""


class _LaidOut(NamedTuple):
    """A batch, and what it points to."""

    batch: Batch
    logits: Tensor
    states: Tensor
    likeliest: np.ndarray
    kept: object


class NativeModel:
    """A causal language model whose passes are single calls.

    Args:
        original: The model it stands in for; see `can_run`.
        context: Its cache.
        max_len: Positions to be ready for.
        quantize: Whether to round the weights of products to int8, and what they read.
        most_threads: Of a large pass; others have torch's number.
    """

    def __init__(
        self,
        original: Any,
        context: AttentionContext,
        max_len: int,
        *,
        quantize: bool = False,
        most_threads: int = 0,
    ) -> None:
        self._quantize = quantize
        self._decoder = Decoder(torch.get_num_threads(), most_threads)
        inner = original.model
        self._context, self._pool = context, context.pool
        self._kept: list[Tensor] = []  # what the structures point to
        self._matrices: list[PackedMatrix] = []
        layers = [self._layer(layer) for layer in inner.layers]
        attention, mlp = inner.layers[0].self_attn, inner.layers[0].mlp
        self._embeddings: Tensor = inner.embed_tokens.weight.data  # [V, hidden]
        self._vocab_size, self._hidden = original.lm_head.weight.shape
        size = attention.head_dim
        heads, kv_heads = head_counts(attention)
        self._shape = LayerShape(kv_heads, size, size)
        angles = inner.rotary_emb(self._embeddings[:1].float(), torch.arange(max_len)[None])
        cos, sin = (self._keep(angle[0].float()) for angle in angles)
        self._layers = (Layer * len(layers))(*layers)
        self._model = Model(
            hidden=self._hidden,
            heads=heads,
            kv_heads=kv_heads,
            size=size,
            inner=mlp.gate_proj.weight.shape[0],
            layers=len(layers),
            vocab=len(self._embeddings),
            positions=max_len,
            epsilon=inner.norm.variance_epsilon,
            scale=attention.scaling,
            embeddings=self._keep(self._embeddings),
            cos=cos,
            sin=sin,
            norm=self._keep(inner.norm.weight.data.float()),
            head=self._product(original.lm_head),
            layer=self._layers,
        )

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """Of the cache, by layer."""
        return dict.fromkeys(range(len(self._layers)), self._shape)

    def __call__(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor, list[int]]:
        """Computes rows.

        Args:
            segments: At least one row; their slots are reserved and distinct.

        Returns:
            Of the wanted rows: logits, float32 `[M, V]`, and the states that the output layer
            read, `[M, hidden]`; and the tokens with the largest logits, `[M]`.

        Raises:
            IndexError: An id, position or slot there is not.
        """
        laid = self._lay_out(segments)
        self._decoder.run(self._model, laid.batch)
        return laid.logits, laid.states, laid.likeliest.tolist()

    def roll(
        self,
        segments: Sequence[Segment],
        slots: Sequence[Sequence[int]],
        best: int,
        certainty: Certainty | None = None,
        news: int = -1,
    ) -> Rolled:
        """Computes rows, and after each wanted one its likeliest token, and the one after that.

        Args:
            segments: As for a call.
            slots: Where the keys and values of those tokens go, `[levels, M]`.
            best: How many of the likeliest tokens to tell of each row.
            certainty: Of the tokens; where it is low, a row goes no further. `best` is two or more.
            news: A descriptor; where it can be read from, no further tokens are computed.

        Raises:
            IndexError: An id, position or slot there is not.
        """
        laid = self._lay_out(segments)
        levels, rows = len(slots), laid.batch.wanted_rows
        places = np.array(slots, dtype=np.int64)
        chosen = np.empty((levels + 1, rows, best), dtype=np.int64)
        behind = np.empty(chosen.shape, dtype=np.float32)
        ends, _kept = _ends(certainty)
        run = self._decoder.roll(
            self._model,
            laid.batch,
            levels,
            best,
            ends=ends,
            news=news,
            slots=_address(places),
            chosen=_address(chosen),
            behind=_address(behind),
        )
        return Rolled(chosen[: run + 1], behind[: run + 1])

    def _lay_out(self, segments: Sequence[Segment]) -> _LaidOut:
        """Rows as the decoder reads them."""
        self._bind()
        ids: list[int] = []
        wanted: list[int] = []
        ordered: list[int] = []
        starts = [0]
        tables: list[np.ndarray] = []
        for segment in segments:
            first = len(ids)
            ids += segment.ids
            wanted += [first + row for row in segment.wanted]
            for run in segment.runs:
                ordered += [first + row for row in run]
                starts.append(len(ordered))
                tables.append(segment.run_table(run))
        likeliest = [0] * len(wanted)  # to be filled in
        rows, runs = len(ids), len(tables)
        logits = torch.empty(len(wanted), self._vocab_size)
        states = torch.empty(len(wanted), self._hidden, dtype=torch.bfloat16)
        words = np.concatenate(  # one array: an address costs as much as a copy of a few rows
            [
                *(segment.positions for segment in segments),
                *(segment.row_slots for segment in segments),
                np.array([*ids, *ordered, *starts, *wanted, *map(_address, tables), *likeliest]),
            ]
        )
        counts = (rows, rows, rows, rows, runs + 1, len(wanted), runs, len(wanted))
        at = itertools.accumulate(counts, initial=_address(words) // _WORD)
        positions, slots, ids_at, ordered_at, starts_at, wanted_at, tables_at, likeliest_at = (
            word * _WORD for word, _ in zip(at, counts, strict=False)
        )
        batch = Batch(
            rows=rows,
            wanted_rows=len(wanted),
            runs=runs,
            large=rows > (_FEW_ROWS if len(segments) > 1 else _OF_ONE_TEXT),
            ids=ids_at,
            positions=positions,
            slots=slots,
            ordered=ordered_at,
            starts=starts_at,
            tables=tables_at,
            wanted=wanted_at,
            logits=logits.data_ptr(),
            states=states.data_ptr(),
            likeliest=likeliest_at,
        )
        filled = words[len(words) - len(likeliest) :]
        return _LaidOut(batch, logits, states, filled, (words, tables))

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies keys and values between slots, given as (from, to); all are read first."""
        self._bind()
        slots = np.array(moves, dtype=np.int64).T.copy()  # [2, moves]
        address = _address(slots)
        targets = address + len(moves) * slots.itemsize
        self._decoder.move(self._model, len(moves), address, targets)

    def _bind(self) -> None:
        """Points the layers at the cache, once it is there."""
        pool = self._context.pool
        if pool is not self._pool:
            assert pool is not None
            self._pool = pool
            self._model.slots = len(pool.layers[0])
            for layer, cache in zip(self._layers, pool.layers, strict=True):
                layer.cache = cache.data_ptr()

    def _layer(self, original: Any) -> Layer:
        attention, mlp = original.self_attn, original.mlp
        q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        return Layer(
            qkv=self._product(attention.q_proj, attention.k_proj, attention.v_proj),
            out=self._product(attention.o_proj),
            gate_up=self._product(mlp.gate_proj, mlp.up_proj),
            down=self._product(mlp.down_proj),
            attention_norm=self._keep(original.input_layernorm.weight.data.float()),
            mlp_norm=self._keep(original.post_attention_layernorm.weight.data.float()),
            q_norm=None if q_norm is None else self._keep(q_norm.weight.data.float()),
            k_norm=None if k_norm is None else self._keep(k_norm.weight.data.float()),
            window=window(attention) or 0,
        )

    def _product(self, *layers: nn.Linear) -> Product:
        """Layers over one input as one matrix."""
        self._matrices.append(PackedMatrix(*joined(*layers), quantize=self._quantize))
        return self._matrices[-1].product

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor that stays."""
        kept = tensor.contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def _ends(certainty: Certainty | None) -> tuple[Ends | None, object]:
    """A certainty as the decoder reads it, and what has to be kept as long as it does."""
    if certainty is None:
        return None, None
    least = np.array(certainty.least, dtype=np.float32)
    from_level = np.array(certainty.from_level, dtype=np.int64)
    arrays = (certainty.bounds, certainty.chances, least, from_level)
    return Ends(len(certainty.chances), *map(_address, arrays)), arrays


def can_run(model: Any) -> bool:
    """Whether the decoder is there and knows every layer of a model on CPU."""
    if not available() or not can_fuse(model):
        return False
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    inputs = (model.lm_head, attention.o_proj, mlp.down_proj)
    return (
        model.lm_head.weight.dtype == torch.bfloat16
        and model.lm_head.bias is None
        and all(layer.weight.shape[1] % 2 == 0 for layer in inputs)
        and attention.head_dim % 2 == 0
    )


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
