"""Attention over the paged cache, by torch.

The new rows' keys and values are written to their slots; what each tile of queries may see (see
`common.model.batch`) is gathered and attended to. Position is the only mask there is: ancestors
of tree nodes are gathered in canonical order, so "column <= position" and, with a sliding window,
"column > position - window" say everything.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from common.model.batch import FIXED_TILES, Batch, Group, TileRows
from common.model.kv_cache import KvPool, LayerShape

_SETTLED_ROWS, _MOST_ROWS = 4, 32
"""Of one product of the fused kernel; see `_tile_rows`."""

_NEAR_BYTES, _FAR_BYTES = 1 << 20, 1 << 26
"""Of the keys of tiles that are attended to together step by step: what stays near a CPU's core,
and elsewhere, where launches cost more, what memory can spare."""


class AttentionContext:
    """What the attention layers of one model share: its cache and the batch now running."""

    def __init__(self) -> None:
        self.pool: KvPool | None = None
        """None while shapes are being learnt."""
        self.shapes: dict[int, LayerShape] = {}
        """By layer, filled by the first pass."""
        self.windows: dict[int, int | None] = {}
        """Keys that a row of a layer sees, itself included; filled where that is learnt, too."""
        self.tile_rows: TileRows = FIXED_TILES
        """Rows of a tile that every layer's kernel can take; settled by the first pass."""
        self.taps: tuple[int, ...] = ()
        """What passes hand out of rows, see `Runner`; set with the cache."""
        self.tapping = True
        """Whether anybody wants them of the next pass."""
        self._batch: Batch | None = None
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}
        self._steps: dict[tuple[int | None, torch.dtype], Tensor] = {}

    @property
    def positions(self) -> int:
        """As many as the cache has slots, and so more than any text has; 1 while shapes are being
        learnt."""
        return 1 if self.pool is None else self.pool.slots

    @property
    def batch(self) -> Batch:
        """The batch now running."""
        assert self._batch is not None, "no forward pass is running"
        return self._batch

    @property
    def wanted_taps(self) -> tuple[int, ...]:
        """Those of `taps` that somebody wants of the next pass: all or none."""
        return self.taps if self.tapping else ()

    def begin(self, batch: Batch) -> None:
        """Sets the batch of the next forward pass."""
        self._batch = batch
        self._masks.clear()

    def learn(
        self, layer: int, shape: LayerShape, repeat: int, query: Tensor, *, plain: bool
    ) -> None:
        """Takes down a layer's shape, and what its kernel needs.

        Args:
            layer: Which.
            shape: Of its cache.
            repeat: Query heads of each key/value head; they are rows of one product.
            query: Queries like those to come.
            plain: Whether torch's fused kernel attends.
        """
        if not self.shapes:
            self.tile_rows = _tile_rows(repeat, query)
        self.shapes[layer] = shape
        if not plain or _tile_rows(repeat, query) != self.tile_rows:
            self.tile_rows = FIXED_TILES

    def mask(self, group: Group, repeat: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask of a group, `[T, 1, repeat * R, W]`; made once a pass."""
        key = (group.first, repeat, window)
        if key not in self._masks:
            width = group.index.shape[1]
            steps, zero = self._step(width, window, dtype, group.index.device)
            # A row's mask is the step, read from where the row's position falls on its edge.
            starts = (zero - group.positions)[:, None].expand(-1, repeat, -1).reshape(-1)
            bias = steps.unfold(0, width, 1).index_select(0, starts)
            self._masks[key] = bias.view(group.tiles, 1, -1, width)
        return self._masks[key]

    def _step(
        self, width: int, window: int | None, dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, int]:
        """The additive mask by (column - position), long enough for a width; and where 0 is."""
        steps = self._steps.get((window, dtype))
        if steps is None or len(steps) < 2 * width:
            offsets = torch.arange(-2 * width, 2 * width, device=device)
            seen = offsets <= 0
            if window is not None:
                seen &= offsets > -window
            steps = torch.zeros(len(offsets), dtype=dtype, device=device)
            steps.masked_fill_(~seen, float("-inf"))
            self._steps[window, dtype] = steps
        return steps, len(steps) // 2


def _tile_rows(repeat: int, query: Tensor) -> TileRows:
    """Rows of a tile that leave every row its bits.

    In bfloat16 on CPU torch's fused kernel sums in one order from four rows of a product on, so a
    row alone need not be padded beyond that, and cuts products at 32 rows. In float32, with some
    counts of threads and rows, it does not; of other devices nothing is known.
    """
    if query.device.type != "cpu" or query.dtype != torch.bfloat16:
        return FIXED_TILES
    least = -(-_SETTLED_ROWS // repeat)
    return TileRows(least, max(least, _MOST_ROWS // repeat))


def without_plans(device: torch.device) -> AbstractContextManager[object]:
    """Has torch attend by its own kernels in a block, which may be a whole pass.

    On some GPUs it would take cuDNN's, which make a plan for every new shape, in tenths of a
    second, and promise nothing of a row's bits from one plan to another.

    Args:
        device: Where it attends.
    """
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def attend(
    context: AttentionContext,
    layer: int,
    query: Tensor,
    key_value: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Writes new rows to the cache and attends to it.

    Args:
        context: The model's cache and batch.
        layer: Which layer's cache.
        query: `[N, H, D]`.
        key_value: Each key followed by its value, `[N, Hkv, D + Dv]`.
        scale: Factor on the scores.
        window: Keys a row sees, itself included; all where None.
        softcap: Scores become softcap * tanh(score / softcap).
        sinks: Attention sink of each head, `[H]`.

    Returns:
        `[N, H, Dv]`.
    """
    (rows, heads, size), kv_heads = query.shape, key_value.shape[1]
    value_size, repeat = key_value.shape[2] - size, heads // kv_heads
    plain = softcap is None and sinks is None and value_size == size
    if context.pool is None:
        context.learn(layer, LayerShape(kv_heads, size, value_size), repeat, query, plain=plain)
        return query.new_zeros(rows, heads, value_size)
    batch, cache = context.batch, context.pool.layers[layer]
    cache.index_copy_(0, batch.slots, key_value)
    queries = query if batch.query_rows is None else query.index_select(0, batch.query_rows)
    outs = []
    for group in batch.groups:
        part = (
            queries[group.first : group.first + group.tiles * group.rows]
            .view(group.tiles, group.rows, kv_heads, repeat, size)
            .permute(0, 2, 3, 1, 4)
            .reshape(group.tiles, kv_heads, repeat * group.rows, size)
        )
        mask = context.mask(group, repeat, window, query.dtype)
        if plain:
            seen = _gather(cache, group.index).expand(group.tiles, -1, -1, -1)
            keys, values = seen[..., :size], seen[..., size:]
            out = F.scaled_dot_product_attention(part, keys, values, attn_mask=mask, scale=scale)
        else:
            out = _explicit(part, cache, group.index, mask, scale, softcap, sinks)
        out = out.view(group.tiles, kv_heads, repeat, group.rows, value_size)
        outs.append(out.permute(0, 3, 1, 2, 4).reshape(-1, heads, value_size))
    attended = outs[0] if len(outs) == 1 else torch.cat(outs)
    return attended if batch.row_queries is None else attended.index_select(0, batch.row_queries)


def _gather(cache: Tensor, index: Tensor) -> Tensor:
    """Keys and values of tiles that see those slots `[T, W]`; `[T, Hkv, W, D + Dv]`."""
    taken = cache.index_select(0, index.view(-1)).view(*index.shape, *cache.shape[1:])
    return taken.transpose(1, 2)


def _explicit(
    query: Tensor,
    cache: Tensor,
    index: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention step by step, for what the fused kernel does not know.

    Of few tiles at a time, with keys in order: products would else write out the keys of every
    tile, transposed, all at once.

    Args:
        query: `[T, Hkv, repeat * R, D]`.
        cache: `[slots, Hkv, D + Dv]`.
        index: Slots that a tile sees, `[T, W]`; `[1, W]` where all see the same.
        mask: Additive, `[T, 1, repeat * R, W]`.
        scale: See `attend`.
        softcap: The same.
        sinks: The same.

    Returns:
        `[T, Hkv, repeat * R, Dv]`.
    """
    tiles, kv_heads, _, size = query.shape
    shared = _gather(cache, index) if len(index) == 1 else None
    shared_keys = None if shared is None else shared[..., :size].contiguous()
    tile_bytes = index.shape[1] * kv_heads * size * cache.element_size()
    at_once = _NEAR_BYTES if cache.device.type == "cpu" else _FAR_BYTES
    most = max(at_once // tile_bytes, 1)
    outs = []
    for first in range(0, tiles, most):
        some = slice(first, first + most)
        part = query[some]
        if shared is None or shared_keys is None:
            seen = _gather(cache, index[some])
            keys, values = seen[..., :size], seen[..., size:]
        else:
            keys, values = shared_keys.expand(len(part), -1, -1, -1), shared[..., size:]
        outs.append(_by_steps(part, keys.contiguous(), values, mask[some], scale, softcap, sinks))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _by_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """`_explicit` of tiles whose keys `[T, Hkv, W, D]` and values `[T, Hkv, W, Dv]` are there."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scale  # [T, Hkv, repeat * R, W]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        heads = sinks.view(1, key.shape[1], -1, 1)
        column = heads.repeat_interleave(query.shape[2] // heads.shape[2], dim=2)
        scores = torch.cat([scores, column.expand(len(scores), -1, -1, -1).to(scores.dtype)], dim=3)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    if sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights, value.expand(len(query), -1, -1, -1))
