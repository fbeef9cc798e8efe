"""A model of Llama's shape for the compiled decoder."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from ctypes import pointer
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from common.model.attention import AttentionContext
from common.model.kv_cache import LayerShape
from common.model.llama import Llama
from common.model.native.layout import LARGE, lay_out
from common.model.native.library import Decoder, instructions, packed
from common.model.native.memory import Addresses, Rooms, Written, address
from common.model.native.structures import Ends, Limits, Request, Rolling
from common.model.native.weights import Weights
from common.model.output import Output
from common.model.roll import Certainty, Drawing, Limit, Rolled, RollOptions
from common.model.segment import Segment
from common.model.whole_pass import WholePass

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


class NativeModel(WholePass):
    """A causal language model whose passes are single calls.

    Args:
        model: What it is made of, see `can_run`; its layers are taken.
        context: Its cache.
        quantize: Whether to round the weights of products to int8, and what they read.
        most_threads: Of a large pass; others have torch's number until they are `spread`.
    """

    rolls = True
    chooses = True

    def __init__(
        self,
        model: Llama,
        context: AttentionContext,
        *,
        quantize: bool = False,
        most_threads: int = 0,
    ) -> None:
        dtype = model.facts.dtype
        assert dtype == torch.bfloat16 or not quantize, "float32 is not rounded by the decoder"
        threads = torch.get_num_threads()
        self._few, self._spread = threads, False
        self._many = max(threads, most_threads)
        self._decoder = Decoder(threads, self._many, dtype=dtype)
        self._context, self._pool = context, context.pool
        self._weights = Weights(model, self._decoder, quantize=quantize)
        self._model = self._weights.model
        vocab_size = len(model.head.weight)
        self._addresses, self._rooms = Addresses(), Rooms(vocab_size, model.hidden, dtype)
        self._cached, self._seen_of = model.cached, model.seen_of
        self._rotaries, self._max_len = model.rotaries, model.facts.max_len
        self._angles: list[tuple[Tensor, Tensor]] = []
        self._growth = model.growth
        self._grown: Tensor | None = None  # its table
        self._dtype, self._taps = dtype, array("q")

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """Of the cache, by layer."""
        return self._cached

    def __call__(self, segments: Sequence[Segment], drawings: Sequence[Drawing] = ()) -> Output:
        """Computes rows.

        Args:
            segments: At least one row; their slots are reserved and distinct.
            drawings: How tokens after wanted rows are drawn; none where all are the likeliest.

        Returns:
            Of the wanted rows; logits are float32.

        Raises:
            IndexError: An id, position or slot there is not.
        """
        laid = self._lay_out(segments)
        assert len(drawings) in (0, laid.wanted)
        if drawings:
            laid.request.drawings, _kept = packed(drawings)
        if self._context.wanted_taps:
            laid.written.features = features = self._features(laid.words[0])
            laid.request.features = features.data_ptr()
        self._decoder.run(self._model, laid.request)
        laid.written.chosen = laid.words[len(laid.words) - laid.wanted :].tolist()
        return laid.written

    @property
    def threads(self) -> int:
        """CPU threads of a pass of few rows."""
        return self._many if self._spread else self._few

    @property
    def most_threads(self) -> int:
        """CPU threads of a pass of many rows."""
        return self._many

    def spread(self, whether: bool) -> None:
        """See `Runner.spread`."""
        self._spread = whether

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
        (ends, _ends_kept), (most, _limits_kept) = _ends(certainty), _limits(limits)
        lines, _lines_kept = packed(drawings, levels) if drawings else (None, None)
        how = Rolling(lines, ends, most, None, best, news)
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
        """Rows as the decoder reads them, and where it is to write."""
        self._bind()
        words = lay_out(segments, self._addresses)
        rows, wanted = words[:2]
        words[LARGE] = self._spread or rows > (_FEW_ROWS if len(segments) > 1 else _OF_ONE_TEXT)
        room, written = self._rooms.take(wanted)
        request = Request(words.buffer_info()[0], room.logits_at, room.states_at)
        return _LaidOut(request, words, wanted, written)

    def _features(self, rows: int) -> Tensor:
        return torch.empty(rows, len(self._taps) * self._model.hidden, dtype=self._dtype)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies keys and values of its layers between slots, given as (from, to); all are read
        first."""
        self._bind()
        slots = array("q", [source for source, _ in moves])
        slots.fromlist([target for _, target in moves])
        sources = slots.buffer_info()[0]
        targets = sources + len(moves) * slots.itemsize
        self._decoder.move(self._model, len(moves), sources, targets)

    def _bind(self) -> None:
        """Points the layers at the cache, once it is there; layers behind them are a head's."""
        pool = self._context.pool
        if pool is not self._pool:
            assert pool is not None
            self._pool, model = pool, self._model
            model.slots = pool.slots
            model.positions = min(self._max_len, model.slots)
            self._angles = [rotary.table(model.positions) for rotary in self._rotaries]
            if self._growth is not None:
                self._grown = self._growth.table(model.positions, torch.device("cpu"))
                model.growth = self._grown.data_ptr()
            self._taps = array("q", self._context.taps)
            model.tapped, model.taps = self._taps.buffer_info()
            for index, (layer, turns) in enumerate(self._weights.layers):
                layer.cos, layer.sin = (part.data_ptr() for part in self._angles[turns])
                layer.cache = pool.layers[self._seen_of.get(index, index)].data_ptr()


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


def can_run(model: Llama) -> bool:
    """Whether a decoder of its type is there and knows every layer of a model on CPU."""
    sizes = (shape.key_size for shape in model.shapes)
    tables = model.per_layer_embeddings
    per_layer = 0 if tables is None else len(tables.norm)
    read = (model.hidden, model.inner, per_layer, *sizes, *(model.latents or ()))
    return (
        bool(instructions(model.facts.dtype))
        and model.head.bias is None
        and all(numbers % 2 == 0 for numbers in read)
    )
