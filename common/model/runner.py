"""Runs ragged batches through a loaded model and its paged cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from common.errors import ModelError, first_line
from common.model.attention import without_plans
from common.model.batch import FIXED_TILES, build_batch
from common.model.cuda.device import drawn_by
from common.model.cuda.pace import pace_of
from common.model.independence import rows_independent
from common.model.kernels import Forward
from common.model.kv_cache import KvPool, LayerShape
from common.model.linear import CUDA_TILE_ROWS
from common.model.loader import LoadedModel
from common.model.output import Output
from common.model.roll import Drawing, Rolled, RollOptions
from common.model.room import OTHER_WEIGHTS, SMALLER_CACHE, ran_out, room_for
from common.model.row import Row
from common.model.sampling import rank
from common.model.segment import Segment
from common.model.whole_pass import WholePass
from common.sampling_params import SamplingParams

_log = logging.getLogger(__name__)

_ROW_STEPS = ((8, 1), (32, 4), (128, 16), (1 << 30, 64))
"""Up to so many rows, round up to a multiple of this."""


class Runner:
    """One model with its cache; not thread-safe: one thread owns it.

    Args:
        loaded: The model.
        kv_bytes: Most memory the key/value cache may take.
        block_tokens: Positions in a block of the cache.
        max_len: Positions a sequence may have; the model's own limit where None.
        taps: Layers whose inputs are wanted of all rows, rising; 0 is the first, and behind the
            last one are the states that the output layer reads. See `Output.features`.
        head_layers: Shapes of layers that the cache has beside the model's, for a drafting head.

    Raises:
        ModelError: Texts have no room for two tokens, the cache does not hold one block, there is
            no room for it, a pass fails, rows influence each other, or there are no such layers to
            tap.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        kv_bytes: int,
        block_tokens: int = 16,
        max_len: int | None = None,
        taps: Sequence[int] = (),
        head_layers: Sequence[LayerShape] = (),
    ) -> None:
        length = min(max_len or loaded.max_len, loaded.max_len)
        if length < 2:
            raise ModelError(
                f"{loaded.name} cannot be served with texts of {length} tokens: 2 is the least"
            )
        self.loaded = loaded
        self._whole: WholePass | None = None
        self._forward: Forward | None = None  # where there is no other
        if isinstance(loaded.forward, WholePass):
            self._whole = loaded.forward
        else:
            self._forward, self._pace = loaded.forward, pace_of(loaded.device)
        self._row_multiple = 1 if loaded.device.type == "cpu" else CUDA_TILE_ROWS
        context = loaded.context
        self._learn_shapes()
        own = [context.shapes[layer] for layer in sorted(context.shapes)]
        self._own_layers = len(own)
        context.taps = self._tapped(taps)
        shapes = [*own, *head_layers]
        block = KvPool.block_bytes(shapes, block_tokens, loaded.dtype)
        spare = KvPool.spare_bytes(shapes, loaded.dtype)
        blocks = (kv_bytes - spare) // block - 1  # one block of padding
        if blocks < 1:
            least = spare + 2 * block
            raise ModelError(f"a cache of {kv_bytes} bytes holds no block; two take {least} bytes")
        with room_for(f"a cache of {kv_bytes} bytes", SMALLER_CACHE):
            self.pool = KvPool(
                shapes,
                blocks=blocks,
                block_tokens=block_tokens,
                dtype=loaded.dtype,
                device=loaded.device,
            )
        context.pool = self.pool
        self.max_len = min(length, blocks * block_tokens)
        if max_len is not None and max_len > loaded.max_len:
            facts = {"asked": max_len, "model": loaded.max_len}
            _log.warning("the model is made for shorter texts than were asked for", extra=facts)
        if blocks * block_tokens < loaded.max_len:
            facts = {"kv_bytes": kv_bytes, "tokens": blocks * block_tokens, "model": loaded.max_len}
            _log.warning("the cache holds less than the model's length", extra=facts)
        self._settle()
        if loaded.device.type == "cuda":
            with _refused(loaded):
                self._compile()

    @property
    def fingerprint(self) -> str:
        """What decides the bits of the logits, what is drawn of them, and where a text ends."""
        tile = self.loaded.context.tile_rows.least
        parts = self.loaded.fingerprint, self._row_multiple, tile, drawn_by(self.loaded.device)
        return "-".join(str(part) for part in parts if part != "")

    @property
    def model_caches(self) -> list[Tensor]:
        """The model's layers of the cache."""
        return self.pool.layers[: self._own_layers]

    @property
    def head_caches(self) -> list[Tensor]:
        """The head's layers of the cache, `[slots + spare, kv heads, key size + value size]` each.

        No pass of the model reads or writes them, and no block of another text has their slots.
        """
        return self.pool.layers[self._own_layers :]

    def forward(
        self, segments: Sequence[Segment], drawings: Sequence[Drawing] = (), *, tap: bool = True
    ) -> Output:
        """One pass: writes the rows' keys and values, and returns the wanted logits.

        Args:
            segments: At least one; their slots are reserved and distinct.
            drawings: How the token after each wanted row is drawn, where `chooses`;
                none where all are the likeliest.
            tap: Whether features are wanted, where there are taps.

        Returns:
            Wanted rows in order, segment after segment. With none wanted, none or one row of
            no meaning.
        """
        self.loaded.context.tapping = tap
        if self._whole is not None:
            return self._whole(segments, drawings)
        return self._through_torch(segments)

    @torch.inference_mode()
    def _through_torch(self, segments: Sequence[Segment]) -> Output:
        given = sum(len(segment.ids) for segment in segments)
        rows = self._padded(given)
        context = self.loaded.context
        batch = build_batch(
            segments, rows=rows, device=self.loaded.device, tile_rows=context.tile_rows
        )
        context.begin(batch)
        wanted = batch.wanted if len(batch.wanted) else batch.wanted.new_zeros(1)
        assert self._forward is not None
        with self._pace, without_plans(self.loaded.device):
            output = self._forward(batch.ids, batch.positions, wanted)
        assert output.logits.shape[0] == output.states.shape[0] == wanted.shape[0]
        if output.features is None:
            return output
        return output._replace(features=output.features[:given])

    @property
    def threads(self) -> int:
        """CPU threads of a pass of few rows."""
        return torch.get_num_threads() if self._whole is None else self._whole.threads

    @property
    def most_threads(self) -> int:
        """CPU threads of a pass of many rows."""
        return torch.get_num_threads() if self._whole is None else self._whole.most_threads

    def spread(self, whether: bool) -> None:
        """Has passes of few rows take the CPU threads of those of many, or no longer."""
        if self._whole is not None:
            self._whole.spread(whether)

    @property
    def chooses(self) -> bool:
        """Whether passes choose the tokens after wanted rows, as drawings say."""
        return self._whole is not None and self._whole.chooses

    @property
    def rolls(self) -> bool:
        """Whether `roll` is there."""
        return self._whole is not None and self._whole.rolls

    def roll(self, segments: Sequence[Segment], slots: ArrayLike, options: RollOptions) -> Rolled:
        """Several passes in one call, where `rolls`: wanted rows go on with their best token.

        They hand out no features.

        Args:
            segments: Of the first pass; see `forward`.
            slots: Where the keys and values of the tokens that follow go, `[levels, M]`.
            options: How they go on, and how far.
        """
        assert self._whole is not None
        return self._whole.roll(segments, slots, options)

    @property
    def tells_of_each(self) -> bool:
        """Whether `levels` is there."""
        return self._whole is not None and self._whole.tells

    def levels(
        self,
        segments: Sequence[Segment],
        slots: ArrayLike,
        options: RollOptions,
        enough: Callable[[], bool],
    ) -> Iterator[np.ndarray]:
        """As `roll`, where the model `tells_of_each` pass while it runs the next.

        Args:
            segments: As for `roll`.
            slots: The same.
            options: The same.
            enough: Asked before each further pass; after that no more are begun.

        Yields:
            The tokens after each level's rows, `[M]`; -1 where a row was over.
        """
        assert self._whole is not None
        levels = self._whole.levels(segments, slots, options, enough)
        return (ids[:, 0] for ids, _ in levels)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies keys and values between slots, given as (from, to); all are read first.

        Those of the model's layers: a head writes its own where they are wanted.
        """
        if self._whole is not None:
            self._whole.move(moves)
        else:
            self.pool.move(moves, self._own_layers)

    @torch.inference_mode()
    def _learn_shapes(self) -> None:
        context = self.loaded.context
        context.pool, context.taps = None, ()
        context.shapes.clear()
        if self._whole is not None:
            context.shapes.update(self._whole.shapes)
        elif self._forward is not None:
            zero = torch.zeros(1, dtype=torch.int64, device=self.loaded.device)
            with _refused(self.loaded, OTHER_WEIGHTS):  # there is no cache yet
                self._forward(zero, zero, zero)

    def _tapped(self, taps: Sequence[int]) -> tuple[int, ...]:
        """Taps, once they are known to be layers of the model."""
        there = range(self._own_layers + 1)
        if any(tap not in there for tap in taps) or list(taps) != sorted(set(taps)):
            raise ModelError(
                f"{self.loaded.name} cannot be tapped at layers {list(taps)}: they must rise, "
                f"from 0 to {there[-1]}"
            )
        return tuple(taps)

    def _padded(self, rows: int) -> int:
        """Rows to run for so many wanted.

        oneDNN sets a kernel up for each new row count, which costs as much as a pass; beyond a
        few rows they are rounded up to one of few counts.
        """
        step = next(step for most, step in _ROW_STEPS if rows <= most)
        return -(-rows // max(step, self._row_multiple)) * max(step, self._row_multiple)

    def _settle(self) -> None:
        """Finds the least padding that keeps rows independent, by trying.

        What of a model is neither replaced nor steadied may use kernels that change with the row
        count, and do so less where that is a multiple of 16.
        """
        context = self.loaded.context
        for multiple, tile_rows in (
            (1, context.tile_rows),
            (1, FIXED_TILES),
            (16, FIXED_TILES),
            (64, FIXED_TILES),
        ):
            self._row_multiple = max(multiple, self._row_multiple)
            context.tile_rows = tile_rows
            with _refused(self.loaded):
                if rows_independent(self):
                    return
            if self._whole is not None:  # nothing here makes it another
                break
        ours = " (kernels: torch leaves ours out)" if self._whole is not None else ""
        raise ModelError(
            f"{self.loaded.name} cannot be served through {self.loaded.kernels}: its logits change "
            f"with the size of the batch{ours}"
        )

    def _compile(self) -> None:
        """Has kernels compiled here that the first requests would otherwise wait for.

        They hang on the type of logits, which is float32 where a head drafts, and on the
        vocabulary.
        """
        lease = self.pool.lease(2)
        segment = Segment([0], 0, lease.slots, wanted=[0])
        logits = self.forward([segment]).logits
        for kind in (logits, logits.float()):
            rank(kind, [Row(SamplingParams(), 1)], 1)
        if self.tells_of_each:
            list(self.levels([segment], lease.slots[1:2, None], RollOptions(1), lambda: False))
        lease.release()


@contextmanager
def _refused(loaded: LoadedModel, remedy: str = SMALLER_CACHE) -> Iterator[None]:
    """Makes what a model's first passes raise, which may be anything, a `ModelError`."""
    with room_for(f"a pass of {loaded.name}", remedy):
        try:
            yield
        except Exception as error:
            ours = isinstance(loaded.forward, WholePass)  # then where it fails matters
            if ours or ran_out(error):
                raise
            raise ModelError(
                f"{loaded.name} cannot be served through {loaded.kernels}: a first pass fails: "
                f"{first_line(error)}"
            ) from error
