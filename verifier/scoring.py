"""What the target says of a batch: one forward pass, and a sample at every node of every tree."""

from __future__ import annotations

from collections.abc import Sequence as Works
from dataclasses import dataclass

from torch import Tensor

from common.model.batch import Segment
from common.model.runner import Runner
from common.model.sampling import Row, sample
from common.model.tree import TokenTree
from verifier.acceptance.base import Scores
from verifier.scheduler import Work
from verifier.sequence import Sequence


@dataclass(frozen=True)
class Scored:
    """One sequence's tree after the pass, and the states below it."""

    scores: Scores
    states: Tensor  # [nodes, hidden]


def score(runner: Runner, batch: Works[Work]) -> list[Scored | None]:
    """Computes a batch.

    Args:
        runner: The target model.
        batch: What the scheduler chose.

    Returns:
        What was found of each; None of chunks that end before the last committed token.
    """
    output = runner.forward([_segment(work) for work in batch])
    rows = [_rows(work.sequence, work.tree) if work.tree else [] for work in batch]
    every = [row for part in rows for row in part]
    choices = sample(output.logits[: len(every)], every).tolist() if every else []
    scored: list[Scored | None] = []
    first = 0
    for work, part in zip(batch, rows, strict=True):
        if work.tree is None:
            scored.append(None)
            continue
        mine = slice(first, first + len(part))
        scores = Scores(
            tree=work.tree, choices=choices[mine], logits=output.logits[mine], rows=part
        )
        scored.append(Scored(scores, output.states[mine]))
        first = mine.stop
    return scored


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
    paths: list[tuple[int, ...]] = [()] * len(tree)
    if seen is not None:
        for node in range(1, len(tree)):
            paths[node] = (*paths[tree.parents[node]], tree.ids[node])
    length = len(sequence.ids)
    return [
        Row(params=sampling, position=length + depth, seen=seen, path=path)
        for depth, path in zip(tree.depths, paths, strict=True)
    ]
