"""Passes that follow each other on the device: the rows after the wanted ones of a batch.

They are laid out once, as they stand at the last level: what a row sees is bounded by its position,
so the levels before differ in the rows' own token, position and slot alone. These a kernel writes
from what was drawn, and no pass waits for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from common.model.cuda.drawings import ADJUSTING, PATH, POSITION, WORDS
from common.model.cuda.keys import ROW_SECTIONS, Size
from common.model.kv_cache import TRASH_SLOT, ZERO_SLOT
from common.model.segment import PathRows, Segment

_WORDS, _DRAWN_AT = tl.constexpr(WORDS), tl.constexpr(POSITION)
_ADJUSTING, _STEPS = tl.constexpr(ADJUSTING), tl.constexpr(PATH)
_IDS = tl.constexpr(ROW_SECTIONS.index("ids"))
_POSITIONS = tl.constexpr(ROW_SECTIONS.index("positions"))
_SLOTS = tl.constexpr(ROW_SECTIONS.index("slots"))
_OWN = tl.constexpr(ROW_SECTIONS.index("own"))
_PATH = tl.constexpr(ROW_SECTIONS.index("path"))


class Drawn(NamedTuple):
    """What rows draw, on the device."""

    drawings: Tensor
    """See `drawings.packed`."""
    ids: Tensor
    """int64 `[N, best]`."""
    behind: Tensor
    """float32 `[N, best]`."""

    @classmethod
    def room(cls, rows: int, best: int, words: int, device: torch.device) -> Drawn:
        """Room for so much, and drawings of so many words."""
        drawings = torch.zeros(words, dtype=torch.int64, device=device)
        ids = torch.zeros(rows, best, dtype=torch.int64, device=device)
        return cls(drawings, ids, torch.zeros_like(ids, dtype=torch.float32))

    def part(self, rows: int, best: int, words: int) -> Drawn | None:
        """The first of its room; None where it is too small."""
        if rows > len(self.ids) or rows * best > self.ids.numel() or words > len(self.drawings):
            return None
        ids, behind = (each.view(-1)[: rows * best].view(rows, best) for each in self[1:])
        return Drawn(self.drawings, ids, behind)

    def within(self, room: Drawn) -> bool:
        """Whether it is a part of a room."""
        return self.ids.data_ptr() == room.ids.data_ptr()


def further(segments: Sequence[Segment], slots: np.ndarray) -> list[Segment]:
    """The rows that follow wanted ones at the last level, in their order.

    Args:
        segments: The batch.
        slots: Where the keys and values of each level go, `[levels, M]`; without one, 0.
    """
    slots = np.where(slots == ZERO_SLOT, TRASH_SLOT, slots)
    found: list[Segment] = []
    first = 0
    for segment in segments:
        count = len(segment.wanted)
        if not count:
            continue
        at = {row: (run, place) for run in segment.runs for place, row in enumerate(run)}
        seen, tables = [], []
        for run, place in (at[row] for row in segment.wanted):
            seen.append(segment.run_start(run) + place + 1)
            tables.append(segment.run_keys(run))
        start = min(min(many, served) for many, (served, _) in zip(seen, tables, strict=True))
        paths = [
            [*segment.slots[start : min(served, many)], *behind[: max(many - served, 0)], *own]
            for many, (served, behind), own in zip(
                seen, tables, slots.T[first : first + count], strict=True
            )
        ]
        rows = [0] * count
        found.append(PathRows(rows, start, segment.slots, paths, wanted=range(count)))
        first += count
    return found


@triton.jit(do_not_specialize=["count", "best"])
def _advance(
    words,  # int32, see `keys`
    count,  # N
    ids,  # int64 [N, best]
    drawings,  # int64, see `drawings`
    best,
):
    row = tl.program_id(0)
    path = tl.load(words + _PATH * count + row)
    if path > 0:  # else it is padding
        position = tl.load(words + _POSITIONS * count + row) + 1
        own = tl.load(words + _OWN * count + row)
        slot = tl.load(words + path + position - own)
        tl.store(words + _POSITIONS * count + row, position)
        tl.store(words + _SLOTS * count + row, slot)
        token = tl.load(ids + row * best)
        tl.store(words + _IDS * count + row, token.to(tl.int32))
        drawing = drawings + row * _WORDS
        tl.store(drawing + _DRAWN_AT, tl.load(drawing + _DRAWN_AT) + 1)
        how = tl.load(drawing + _ADJUSTING)
        if how > 0:
            steps = drawings + how + _STEPS
            many = tl.load(steps)
            tl.store(steps + 1 + many, token)
            tl.store(steps, many + 1)


def advance(words: Tensor, size: Size, drawn: Drawn) -> None:
    """Has rows stand where they go on with what was drawn.

    Args:
        words: The rows of `further`, laid out; see `keys`.
        size: Of that batch.
        drawn: Of the level before.
    """
    rows, best = drawn.ids.shape
    # One warp: another would read what the first has moved on already.
    _advance[(rows,)](words, size.rows, drawn.ids, drawn.drawings, best, num_warps=1)


class Told:
    """A level's tokens on their way to the host.

    Args:
        drawn: It.
        rows: Of these.
    """

    def __init__(self, drawn: Drawn, rows: int) -> None:
        here = [drawn.ids[:rows], drawn.behind[:rows]]
        self._event: torch.cuda.Event | None = None
        if drawn.ids.is_cuda:
            self._parts = [torch.empty_like(part, device="cpu", pin_memory=True) for part in here]
            for place, part in zip(self._parts, here, strict=True):
                place.copy_(part, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._parts = [part.clone() for part in here]

    def wait(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and how far they are behind, `[rows, best]` each, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        ids, behind = (part.numpy() for part in self._parts)
        return ids, behind
