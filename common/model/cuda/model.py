"""A model of Llama's shape on CUDA."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from common.model.attention import AttentionContext
from common.model.course import Course
from common.model.cuda.device import drawer
from common.model.cuda.drawings import WORDS, packed
from common.model.cuda.graphs import Graphs, PassTensors
from common.model.cuda.keys import Keys, Size, lay_out, section, tile_rows
from common.model.cuda.layer import Layer
from common.model.cuda.pace import pace_of
from common.model.cuda.per_layer import PerLayer
from common.model.cuda.products import Products
from common.model.cuda.rolling import Drawn, Told, advance, further
from common.model.cuda.rowwise import RmsNorm, cap
from common.model.kv_cache import KvPool, LayerShape
from common.model.llama import Llama
from common.model.output import Computed, Output
from common.model.roll import Drawing, Rolled, RollOptions
from common.model.segment import Segment
from common.model.transfer import pinned
from common.model.whole_pass import WholePass

_MOST_ROWS = 256
"""Of a graph; a larger pass is bound by computing, not by its launches."""

_MOST_WORDS = 1 << 21
"""Of a batch that a graph reads."""

_MOST_BEST = 16
"""Tokens that rows of a graph tell, beside each other."""

_MOST_LISTED = 1 << 17
"""Words of what changes logits of a graph: a megabyte."""


class CudaModel(WholePass):
    """A causal language model whose passes of few rows are graphs.

    Args:
        model: What it is made of; its layers are taken.
        context: Its cache.
        products: What it multiplies by.
    """

    def __init__(self, model: Llama, context: AttentionContext, products: Products) -> None:
        self._context, self._pool = context, context.pool
        self._embeddings, self._embedding_scale = model.embeddings, model.embedding_scale
        self._read_as = model.read_as
        self._feature_scale = model.feature_scale
        self._cached, self._seen_of = model.cached, model.seen_of
        # One layout serves all layers: tiles of those with more keys than others are not full.
        self._tile_rows = min(tile_rows(model.heads, shape.kv_heads) for shape in model.shapes)
        device = self._embeddings.device
        self._rotaries, self._max_len = model.rotaries, model.facts.max_len
        self._positions = 0  # of which there are angles
        self._angles: list[tuple[Tensor, Tensor]] = []
        self._growth = model.growth
        self._grown: Tensor | None = None  # its table
        self._norm = RmsNorm(model.norm, model.epsilon)
        self._head, self._head_scale = products.head(*model.head), model.head_scale
        self._head_softcap = model.head_softcap
        self._row_step = products.row_step
        make = partial(Layer, model=model, products=products)
        self._layers = [*map(make, model.layers, model.shapes)]
        tables = model.per_layer_embeddings
        self._per_layer = None if tables is None else PerLayer(tables, products)
        on_cuda = device.type == "cuda"
        self._graphs = Graphs(device) if on_cuda else None
        self._pace = pace_of(device)
        # Triton launches on the device that is the thread's.
        self._on_device = partial(torch.cuda.device, device) if on_cuda else nullcontext
        # Where graphs read their batch, and what all of them write.
        self._words = torch.zeros(_MOST_WORDS, dtype=torch.int32, device=device)
        vocab_size, hidden = model.head.weight.shape
        self._logits = self._embeddings.new_empty(_MOST_ROWS if on_cuda else 0, vocab_size)
        self._states = self._embeddings.new_empty(len(self._logits), hidden)
        self._features = self._states.new_empty(len(self._logits), 0, hidden)  # [N, taps, hidden]
        words = _MOST_ROWS * WORDS + _MOST_LISTED
        self._drawn = Drawn.room(_MOST_ROWS, _MOST_BEST, words, device)
        self._draw = drawer(device)
        self.rolls = self.tells = self._draw is not None  # where tokens are drawn on the device

    @property
    def shapes(self) -> dict[int, LayerShape]:
        """Of the cache, by layer."""
        return self._cached

    @torch.inference_mode()
    def __call__(self, segments: Sequence[Segment], drawings: Sequence[Drawing] = ()) -> Output:
        """Computes rows.

        Args:
            segments: At least one row; their slots are reserved and distinct.
            drawings: Not followed: nothing is chosen in passing here.
        """
        self._bind()
        keys = self._lay_out(segments)
        with self._on_device(), self._pace:
            logits, states, tapped = self._run(self._place(keys), keys.size)
            features = None
            if self._context.wanted_taps:
                rows = sum(len(segment.ids) for segment in segments)
                features = tapped[:rows].flatten(1).clone()
            logits, states = logits[: keys.wanted].clone(), states[: keys.wanted].clone()
            return Computed(logits, states, features=features)

    def roll(self, segments: Sequence[Segment], slots: ArrayLike, options: RollOptions) -> Rolled:
        """Computes rows, and the tokens after wanted ones level by level; see `Runner.roll`."""
        ids, behind = zip(*self.levels(segments, slots, options), strict=True)
        return Rolled(np.stack(ids), np.stack(behind), None)

    @torch.inference_mode()
    def levels(
        self,
        segments: Sequence[Segment],
        slots: ArrayLike,
        options: RollOptions,
        enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Computes rows, and tells of each level while the next one runs.

        So whoever deals with it takes no time between two passes. Rows that end with a level are
        computed once more, for nothing. Not so with a certainty, which ends rows often: there the
        next pass waits for what the one before it found.

        Between two levels no other pass may run: all read their batch in one place. Levels that lie
        beyond the last position for any row are left out: rows that have ended go on, unseen.

        Args:
            segments: See `Runner.roll`.
            slots: The same.
            options: The same.
            enough: Asked before each further pass; after that no more are begun.

        Yields:
            Ids and how far they are behind, of each level; see `Rolled`.
        """
        self._bind()
        keys = self._lay_out(segments)
        course = Course(keys.wanted, options.certainty, options.limits)
        last = int(section(torch.from_numpy(keys.words), keys.size, "positions").max())
        places = np.array(slots, dtype=np.int64)[: self._positions - 1 - last]
        following: tuple[Tensor, Size] | None = None
        with self._on_device():
            logits, *_ = self._run(self._place(keys), keys.size)
            drawn = self._room(keys, options, len(places))
            self._choose(logits, drawn)
            told, lacking = deque([Told(drawn, keys.wanted)]), len(places)
            while told and course.alive:
                found = None
                if options.certainty is not None:
                    found = course.take(*told.popleft().wait())
                if not course.alive or enough() or _readable(options.news):
                    lacking = 0
                if lacking:
                    lacking -= 1
                    following = following or self._follow(segments, places)
                    self._run(*following, drawn)
                    told.append(Told(drawn, keys.wanted))
                yield found or course.take(*told.popleft().wait())

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies keys and values of its layers between slots; see `Runner.move`."""
        pool = self._context.pool
        assert pool is not None
        pool.move(moves, len(self._layers))

    def _lay_out(self, segments: Sequence[Segment]) -> Keys:
        return lay_out(
            segments,
            page=self._cache.blocks.block_tokens,
            tile_rows=self._tile_rows,
            row_step=self._row_step,
        )

    def _follow(self, segments: Sequence[Segment], slots: np.ndarray) -> tuple[Tensor, Size]:
        """The rows after wanted ones, placed where they stand before the first level."""
        keys = self._lay_out(further(segments, slots))
        positions = section(torch.from_numpy(keys.words), keys.size, "positions")
        positions[: keys.wanted] -= len(slots)
        return self._place(keys), keys.size

    def _place(self, keys: Keys) -> Tensor:
        """A batch on the device: where graphs read it, unless it is too large for one."""
        device = self._words.device
        words = pinned(torch.from_numpy(keys.words), device)
        if self._graphs is None or keys.size.rows > _MOST_ROWS or len(words) > _MOST_WORDS:
            return words.to(device, non_blocking=True)
        self._words[: len(words)].copy_(words, non_blocking=True)
        return self._words

    def _room(self, keys: Keys, options: RollOptions, levels: int) -> Drawn:
        """Room for what wanted rows draw, so often and once more, and how they do."""
        rows, device = keys.size.wanted, self._words.device
        words = packed(options.drawings, keys.wanted, rows, levels=levels)
        sizes = rows, options.best, len(words)
        drawn = self._drawn.part(*sizes) or Drawn.room(*sizes, device)
        drawn.drawings[: len(words)].copy_(pinned(words, device), non_blocking=True)
        return drawn

    def _run(self, words: Tensor, size: Size, drawn: Drawn | None = None) -> PassTensors:
        """Launches a pass of a batch that was placed.

        Args:
            words: The batch.
            size: Of it.
            drawn: Set where its rows go on with what was drawn, and draw again.

        Returns:
            Logits, states and features, of rows that go on none; the next pass may overwrite them.
        """
        kind: Hashable = size
        compute = partial(self._in_place, words, size)
        if drawn is not None:
            kind = size, drawn.ids.shape[1]
            compute = partial(self._go_on, words, size, drawn)
        if words is not self._words or (drawn is not None and not drawn.within(self._drawn)):
            return compute()
        assert self._graphs is not None
        return self._graphs.run(kind, compute)

    def _in_place(self, words: Tensor, size: Size) -> PassTensors:
        """`_compute`, to where all graphs write where they read the batch."""
        if words is not self._words:
            features = self._features.new_empty(size.rows, *self._features.shape[1:])
            return *self._compute(words, size, features), features
        features = self._features[: size.rows]
        kept = self._logits[: size.wanted], self._states[: size.wanted]
        for place, part in zip(kept, self._compute(words, size, features), strict=True):
            place.copy_(part)
        return *kept, features

    def _go_on(self, words: Tensor, size: Size, drawn: Drawn) -> PassTensors:
        """The rows that follow, and what they draw; logits and states are nobody's."""
        advance(words, size, drawn)
        logits, _ = self._compute(words, size)
        self._choose(logits, drawn)
        # A graph keeps the memory of what it returns.
        return self._logits[:0], self._states[:0], self._features[:0]

    def _choose(self, logits: Tensor, drawn: Drawn) -> None:
        assert self._draw is not None
        self._draw(logits, drawn.drawings, drawn.ids, drawn.behind)

    def _compute(
        self, words: Tensor, size: Size, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits `[M, V]` and states `[M, hidden]` of a batch laid out.

        Args:
            words: The batch.
            size: Of it.
            features: Where what is tapped goes, `[N, taps, hidden]`; None for nowhere.
        """
        pool = self._cache
        places = {}
        if features is not None:
            places = dict(zip(self._context.taps, features.unbind(1), strict=True))
        ids, wanted = section(words, size, "ids"), section(words, size, "wanted")
        if self._read_as is not None:
            ids = self._read_as.index_select(0, ids)
        x = self._embeddings.index_select(0, ids)
        if self._embedding_scale != 1:
            x *= self._embedding_scale
        per_layer = None if self._per_layer is None else self._per_layer(ids, x)
        for index, layer in enumerate(self._layers):
            if index in places:
                torch.mul(x, self._feature_scale, out=places[index])  # now: products take its place
            angles, page = self._angles[layer.rotary], pool.blocks.block_tokens
            cache = pool.layers[self._seen_of.get(index, index)]
            beside = None if per_layer is None else per_layer[:, index]
            x = layer(x, angles, self._grown, cache, words, size, page, beside)
        if len(self._layers) in places:
            places[len(self._layers)].copy_(self._norm(x))
        states = self._norm(x.index_select(0, wanted[: size.wanted]))
        logits = self._head(states)
        if self._head_scale != 1:
            logits *= self._head_scale
        if self._head_softcap is not None:
            cap(logits, self._head_softcap)
        return logits, states

    @property
    def _cache(self) -> KvPool:
        assert self._pool is not None
        return self._pool

    def _bind(self) -> None:
        """Takes the cache at hand, and what is tapped; graphs of another are no more."""
        pool = self._context.pool
        assert pool is not None
        if pool is not self._pool:
            self._pool = pool
            self._positions = min(self._max_len, self._context.positions)
            self._angles = [rotary.table(self._positions) for rotary in self._rotaries]
            if self._growth is not None:
                self._grown = self._growth.table(self._positions, self._embeddings.device)
            rows, hidden = self._states.shape
            self._features = self._states.new_empty(rows, len(self._context.taps), hidden)
            if self._graphs is not None:
                self._graphs.clear()


def _readable(descriptor: int) -> bool:
    """Whether something can be read from a descriptor; not from -1."""
    if descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
