"""A batch as the decoder reads it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from common.model.native.memory import Addresses
from common.model.segment import Segment

LARGE = 3
"""Place of the word that says whether more threads are worth it."""


def lay_out(segments: Sequence[Segment], addresses: Addresses) -> array[int]:
    """Rows as the words of a `Request`, which begin with how many there are, and are wanted.

    Lists in one array: what counts after a pass that swept the caches is how many calls there are.

    Args:
        segments: At least one row; their slots are reserved and distinct.
        addresses: Of their slots.

    Raises:
        IndexError: A position has no slot.
    """
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
        table = addresses.of(segment.slots)
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
    words = array("q", (len(ids), len(wanted), len(tables), False))
    for part in (ids, ordered, starts, positions, tables, lengths, tails, behind, wanted):
        words.fromlist(part)
    words.fromlist(wanted)  # to be overwritten by the tokens after them
    return words
