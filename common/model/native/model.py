"""A `transformers` model for the compiled decoder."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from ctypes import pointer
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from common.model.attention import AttentionContext
from common.model.fused import can_fuse, head_counts, joined, window
from common.model.kv_cache import LayerShape
from common.model.native.library import Decoder, instructions, packed
from common.model.native.memory import Addresses, Rooms, Written, address
from common.model.native.product import PackedMatrix
from common.model.native.structures import (
    Ends,
    Layer,
    Limits,
    Model,
    Product,
    Request,
    Rolling,
)
from common.model.output import Output
from common.model.roll import Certainty, Limit, Rolled, RollOptions
from common.model.segment import Segment

_FEW_ROWS = 6
"""Up to so many, reading the weights takes longer than computing: with small models more threads
gain next to nothing."""

_OF_ONE_TEXT = 12
"""Up to so many rows of a single text may be a draft, whose drafter needs the processors."""


class _LaidOut(NamedTuple):
    """A batch for the decoder, and where it is to write."""

    request: Request
    words: array[int]
    wanted: int
    written: Written


class NativeModel:
    """A causal language model whose passes are single calls.

    Args:
        original: The model it stands in for; see `can_run`.
        context: Its cache.
        max_len: Positions to be ready for.
        quantize: Whether to round the weights of products to int8, and what they read.
        most_threads: Of a large pass; others have torch's number until they are `spread`.
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
        inner = original.model
        dtype = inner.embed_tokens.weight.dtype
        assert dtype == torch.bfloat16 or not quantize, "float32 is not rounded by the decoder"
        threads = torch.get_num_threads()
        self._few, self._spread = threads, False
        self.most_threads = max(threads, most_threads)
        """CPU threads of a pass of many rows."""
        self._decoder = Decoder(threads, self.most_threads, dtype=dtype)
        self._context, self._pool = context, context.pool
        self._kept: list[Tensor] = []  # what the structures point to
        self._matrices: list[PackedMatrix] = []
        layers = [self._layer(layer) for layer in inner.layers]
        attention, mlp = inner.layers[0].self_attn, inner.layers[0].mlp
        self._embeddings: Tensor = inner.embed_tokens.weight.data  # [V, hidden]
        vocab_size, hidden = original.lm_head.weight.shape
        self._addresses, self._rooms = Addresses(), Rooms(vocab_size, hidden, dtype)
        size = attention.head_dim
        heads, kv_heads = head_counts(attention)
        self._shape = LayerShape(kv_heads, size, size)
        angles = inner.rotary_emb(self._embeddings[:1].float(), torch.arange(max_len)[None])
        cos, sin = (self._keep(angle[0].float()) for angle in angles)
        self._layers = (Layer * len(layers))(*layers)
        self._model = Model(
            hidden=hidden,
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

    def __call__(self, segments: Sequence[Segment]) -> Output:
        """Computes rows.

        Args:
            segments: At least one row; their slots are reserved and distinct.

        Returns:
            Of the wanted rows; logits are float32.

        Raises:
            IndexError: An id, position or slot there is not.
        """
        laid = self._lay_out(segments)
        self._decoder.run(self._model, laid.request)
        laid.written.likeliest = laid.words[len(laid.words) - laid.wanted :].tolist()
        return laid.written

    @property
    def threads(self) -> int:
        """CPU threads of a pass of few rows."""
        return self.most_threads if self._spread else self._few

    def spread(self, whether: bool) -> None:
        """See `Runner.spread`."""
        self._spread = whether

    @property
    def rolls(self) -> bool:
        """Whether `roll` is there."""
        return True

    def roll(self, segments: Sequence[Segment], slots: ArrayLike, options: RollOptions) -> Rolled:
        """Computes rows, and after each wanted one the best token, and the one after that.

        Args:
            segments: As for a call.
            slots: Where the keys and values of those tokens go, `[levels, M]`.
            options: How they go on, and how far.

        Raises:
            IndexError: An id, position or slot there is not.
        """
        best, certainty, news, drawings, limits = options
        assert best > 1 or (certainty is None and not drawings)
        laid = self._lay_out(segments)
        places = np.array(slots, dtype=np.int64)
        levels, rows = len(places), laid.wanted
        chosen = np.empty((levels + 1, rows, best), dtype=np.int64)
        behind = np.empty(chosen.shape, dtype=np.float32)
        (ends, _kept), (most, _also) = _ends(certainty), _limits(limits)
        how = Rolling(packed(drawings) if drawings else None, ends, most, best, news)
        run = self._decoder.roll(
            self._model,
            laid.request,
            how,
            levels,
            slots=address(places),
            chosen=address(chosen),
            behind=address(behind),
        )
        return Rolled(chosen[: run + 1], behind[: run + 1], laid.written)

    def _lay_out(self, segments: Sequence[Segment]) -> _LaidOut:
        """Rows as the decoder reads them.

        Lists in one array: what counts after a pass that swept the caches is how many calls there
        are.
        """
        self._bind()
        ids: list[int] = []
        wanted: list[int] = []
        ordered: list[int] = []
        behind: list[int] = []
        starts, tails = [0], [0]
        positions, tables, lengths = [], [], []
        for segment in segments:
            first = len(ids)
            ids += segment.ids
            wanted += [first + row for row in segment.wanted]
            table = self._addresses.of(segment.slots)
            for run in segment.runs:
                ordered += [first + row for row in run]
                starts.append(len(ordered))
                positions.append(segment.run_start(run))
                length, tail = segment.run_keys(run)
                if length > len(segment.slots):
                    raise IndexError(f"{length} positions, {len(segment.slots)} with a slot")
                tables.append(table)
                lengths.append(length)
                behind += tail
                tails.append(len(behind))
        rows = len(ids)
        large = self._spread or rows > (_FEW_ROWS if len(segments) > 1 else _OF_ONE_TEXT)
        words = array("q", (rows, len(wanted), len(tables), large))
        for part in (ids, ordered, starts, positions, tables, lengths, tails, behind, wanted):
            words.fromlist(part)
        words.fromlist(wanted)  # to be overwritten by the likeliest tokens
        room, written = self._rooms.take(len(wanted))
        request = Request(words.buffer_info()[0], room.logits_at, room.states_at)
        return _LaidOut(request, words, len(wanted), written)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies keys and values between slots, given as (from, to); all are read first."""
        self._bind()
        slots = array("q", [source for source, _ in moves])
        slots.fromlist([target for _, target in moves])
        sources = slots.buffer_info()[0]
        targets = sources + len(moves) * slots.itemsize
        self._decoder.move(self._model, len(moves), sources, targets)

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
        self._matrices.append(
            PackedMatrix(*joined(*layers), self._decoder, quantize=self._quantize)
        )
        return self._matrices[-1].product

    def _keep(self, tensor: Tensor) -> int:
        """The address of a tensor that stays."""
        kept = tensor.contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def _ends(certainty: Certainty | None) -> tuple[Any, object]:
    """A certainty as the decoder reads it, and what has to be kept as long as it does."""
    if certainty is None:
        return None, None
    longest = max(map(len, certainty.least)) or 1
    chances, least = array("f"), array("f")  # [M, ranges], [M, longest]
    for line in certainty.chances:
        chances.extend(line)
    for prices in certainty.least:
        least.extend(prices)
        least.extend([prices[-1] if prices else 0.0] * (longest - len(prices)))
    bounds, right = array("f", certainty.bounds), array("f", certainty.right)
    arrays = (bounds, chances, least, array("q", certainty.tokens), right)
    addresses = (numbers.buffer_info()[0] for numbers in arrays)
    return pointer(Ends(len(bounds) + 1, longest, *addresses)), arrays


def _limits(limits: Sequence[Limit]) -> tuple[Any, object]:
    """Limits as the decoder reads them, and what has to be kept as long as it does."""
    if not limits:
        return None, None
    stops = [token for limit in limits for token in limit.stops]
    starts = [0, *itertools.accumulate(len(limit.stops) for limit in limits)]
    lists = ([limit.tokens for limit in limits], stops, starts)
    arrays = [array("q", numbers) for numbers in lists]
    return pointer(Limits(*(numbers.buffer_info()[0] for numbers in arrays))), arrays


def can_run(model: Any) -> bool:
    """Whether a decoder of its type is there and knows every layer of a model on CPU."""
    if not can_fuse(model) or not instructions(model.lm_head.weight.dtype):
        return False
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    inputs = (model.lm_head, attention.o_proj, mlp.down_proj)
    return (
        model.lm_head.bias is None
        and all(layer.weight.shape[1] % 2 == 0 for layer in inputs)
        and attention.head_dim % 2 == 0
    )
