"""Several passes in one call of the model, of texts for which nothing is drafted.

What lies between two passes takes some 25 us for each text, with sixteen of them a quarter of a
small model's pass. Nothing has to lie there: the messages of a stream are some passes apart, and a
text's own sampling says which token follows which.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Works

import numpy as np

from common.model.roll import Limit
from common.model.runner import Runner
from common.model.sampling import Row, sample
from common.model.segment import Segment
from verifier.scheduler import Work
from verifier.sequence import Sequence


def passes(batch: Works[Work], most: int, rests: Callable[[Sequence], bool]) -> int:
    """How many passes of a batch may be one call; reserves cache for their tokens.

    Args:
        batch: What the scheduler chose.
        most: No more than these.
        rests: Whether nothing is to be drafted for a sequence meanwhile.

    Returns:
        1 where something has to come between two passes, or there is no room.
    """
    most = min(most, max(work.sequence.room for work in batch))
    if most < 2 or not all(_flows(work) and rests(work.sequence) for work in batch):
        return 1
    for sequence in (work.sequence for work in batch):
        if not sequence.lease.reserve(len(sequence.ids) + min(most, sequence.room) - 1):
            return 1
    return most


def roll(runner: Runner, batch: Works[Work], count: int, news: int) -> tuple[int, list[list[int]]]:
    """Computes several passes; a text whose end comes takes no part in those after it.

    Args:
        runner: The target model; it `rolls`.
        batch: What `passes` was asked about.
        count: Its answer.
        news: A descriptor; where it can be read from, no further pass is begun.

    Returns:
        Passes made, and the tokens of each sequence, at least one.
    """
    sequences = [work.sequence for work in batch]
    segments = [
        Segment(sequence.ids[-1:], sequence.computed, sequence.lease.slots, wanted=(0,))
        for sequence in sequences
    ]
    slots = np.zeros((count - 1, len(batch)), dtype=np.int64)
    for line, sequence in zip(slots.T, sequences, strict=True):
        own = sequence.lease.slots[len(sequence.ids) :][: count - 1]
        line[: len(own)] = own
    rows = [Row(params=each.request.sampling, position=len(each.ids)) for each in sequences]
    drawn = not all(row.params.greedy for row in rows)
    rolled = runner.roll(
        segments,
        slots,
        2 if drawn else 1,
        news=news,
        drawings=[row.drawing for row in rows] if drawn else (),
        limits=[Limit(each.room, each.request.stop_ids) for each in sequences],
    )
    lines = rolled.ids[:, :, 0].T
    found = [line[line >= 0].tolist() for line in lines]
    for index, row in enumerate(rows):
        if not found[index]:  # compiled code was not sure
            assert rolled.output is not None
            found[index] = sample(rolled.output.logits[index : index + 1], [row]).tolist()
    return len(rolled.ids), found


def _flows(work: Work) -> bool:
    """Whether a sequence needs nothing between two passes but the token chosen in the first.

    Its first token goes out at once, and so do times of its rounds, where they are wanted.
    """
    sequence = work.sequence
    return (
        sequence.pending == 1
        and work.tree is not None
        and len(work.tree) == 1
        and sequence.counts.rounds > 0
        and sequence.stopwatch is None
        and not sequence.request.sampling.adjusts
    )
