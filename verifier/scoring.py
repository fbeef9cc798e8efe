"""What the target says of a batch: one forward pass, and a sample at every node of every tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

from common.model.output import Output, rows_of
from common.model.roll import Drawing
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import sample
from common.model.segment import Segment
from common.model.tree import TokenTree
from verifier.acceptance.base import Rule, Scores, weighed
from verifier.scheduler import Work
from verifier.sequence import Sequence


class Chunk(NamedTuple):
    """A part of a prompt that was computed."""

    output: Output
    """Of the pass."""
    row: int
    """Of its first among all of the pass."""


def score(
    runner: Runner, batch: Seq[Work], rules: Mapping[str, Rule], *, tap: bool = False
) -> list[Scores | Chunk]:
    """Computes a batch, in one pass.

    Args:
        runner: The target model.
        batch: What the scheduler chose.
        rules: Of acceptance, by name.
        tap: Whether anybody wants the states that the runner taps.

    Returns:
        Of each piece of work; no scores of chunks that end before the last committed token.
    """
    rows = [_rows(work.sequence, work.tree) if work.tree else [] for work in batch]
    every = rows[0] if len(rows) == 1 else [row for part in rows for row in part]
    drawings = _drawings(every) if runner.chooses else []
    output = runner.forward([_segment(work) for work in batch], drawings, tap=tap)
    choices = _choices(output, every)
    found: list[Scores | Chunk] = []
    first = row = 0
    for work, part in zip(batch, rows, strict=True):
        if work.tree is None:
            found.append(Chunk(output, row))
        else:
            mine = choices[first : first + len(part)]
            found.append(Scores(work.tree, mine, part, output, first, row))
        first += len(part)
        row += work.batch_rows
    asking = [rules[work.sequence.request.acceptance] for work in batch if work.tree is not None]
    scores = iter(weighed([one for one in found if isinstance(one, Scores)], asking))
    return [next(scores) if isinstance(one, Scores) else one for one in found]


def _drawings(rows: list[Row]) -> list[Drawing]:
    """How the pass is to draw; nothing where all are the likeliest tokens."""
    if all(row.bare for row in _different(rows)):
        return []
    return [row.drawing for row in rows]


def _choices(output: Output, rows: list[Row]) -> list[int]:
    """The target's choice at every node: the pass's own, where that is sure."""
    chosen = output.chosen
    if chosen is None:
        return sample(output.logits[: len(rows)], rows).tolist() if rows else []
    open_ = [i for i, token in enumerate(chosen) if token < 0]
    if open_:
        chosen = [*chosen]
        found = sample(rows_of(output.logits, open_), [rows[i] for i in open_]).tolist()
        for i, token in zip(open_, found, strict=True):
            chosen[i] = token
    return chosen


def _different(rows: list[Row]) -> Iterator[Row]:
    """Rows without those that are the one before once more, as those of a greedy text are."""
    before = None
    for row in rows:
        if row is not before:
            yield row
        before = row


def _segment(work: Work) -> Segment:
    sequence, slots = work.sequence, work.sequence.lease.slots
    if work.tree is not None and len(work.tree) > 1:
        tree = work.tree
        return Segment(tree.ids, sequence.computed, slots, tree=tree, wanted=range(len(tree)))
    rows = sequence.ids[sequence.computed : sequence.computed + work.rows]
    wanted = [work.rows - 1] if work.tree is not None else []
    return Segment(rows, sequence.computed, slots, wanted=wanted)


def _rows(sequence: Sequence, tree: TokenTree) -> list[Row]:
    """What sampling needs to know at each node: position, and history where penalties ask."""
    sampling, seen = sequence.request.sampling, sequence.seen
    length = len(sequence.ids)
    if sampling.greedy and seen is None:  # without noise, and so wherever a node stands
        return [Row(params=sampling, position=length)] * len(tree)
    paths: list[tuple[int, ...]] = [()] * len(tree)
    if seen is not None:
        for node in range(1, len(tree)):
            paths[node] = (*paths[tree.parents[node]], tree.ids[node])
    return [
        Row(params=sampling, position=length + depth, seen=seen, path=path)
        for depth, path in zip(tree.depths, paths, strict=True)
    ]
