"""Several passes in one call of the model, of texts for which nothing is drafted.

What lies between two passes takes some 25 us for each text, with sixteen of them a quarter of a
small model's pass. Nothing has to lie there: a text's own sampling says which token follows which.

On a CPU a call tells what it found when it returns. That takes no longer than a message may wait,
and whoever joins or is cancelled waits for one pass. On a GPU every pass is told of while the next
one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from common.model.roll import Limit, RollOptions
from common.model.row import Row
from common.model.runner import Runner
from common.model.sampling import sample
from common.model.segment import Segment
from verifier.cost import StepCost
from verifier.mailbox import beat_s
from verifier.scheduler import Work
from verifier.sequence import Sequence

_SEVERAL = 2
"""Texts from which on passes may be one call on a CPU. One alone would gain a seventh by it, too:
its steps, which speculation is measured against, are left as they are."""

_OF_A_BEAT = 0.5
"""Part of the time between two messages that a call takes, about, but for one of two passes: that
may take all of it. What comes of it waits for the next message anyway. Who joins or is cancelled
waits for one pass, who has all its text for the call."""

_MOST_PASSES = 64

_MOST_TOLD = 16
"""Passes of a call that tells of each: after it methods are asked again whether they rest."""


class Found(NamedTuple):
    """What passes found, those since the last were told of."""

    passes: int
    """How many."""
    ids: list[list[int]]
    """The tokens of each sequence; none of one that had ended before."""


class Rolling:
    """Says which passes may be one call, and makes it.

    Args:
        runner: The target model.
        cost: Of its steps.
        interval_s: Time between two messages of one stream, in seconds; see `VerifierConfig`.
    """

    def __init__(self, runner: Runner, cost: StepCost, interval_s: float) -> None:
        self._runner, self._cost, self._interval_s = runner, cost, interval_s

    def passes(self, batch: Seq[Work], rests: Callable[[Sequence], bool]) -> int:
        """How many passes of a batch may be one call; reserves cache for their tokens.

        Args:
            batch: What the scheduler chose: everybody.
            rests: Whether nothing is to be drafted for a sequence meanwhile.

        Returns:
            1 where something has to come between two passes, or there is no room.
        """
        most = self._most(len(batch))
        if most < 2 or not all(self._flows(work) and rests(work.sequence) for work in batch):
            return 1
        most = min(most, max(work.sequence.room for work in batch))
        for sequence in (work.sequence for work in batch):
            if not sequence.lease.reserve(len(sequence.ids) + min(most, sequence.room) - 1):
                return 1
        return most

    def _most(self, texts: int) -> int:
        """Passes of a call of so many texts."""
        if self._runner.tells_of_each:
            return _MOST_TOLD
        if texts < _SEVERAL or not self._runner.rolls:
            return 1
        in_a_beat = beat_s(self._interval_s, texts) / self._cost.step_s(texts)
        return min(max(round(_OF_A_BEAT * in_a_beat), min(int(in_a_beat), 2)), _MOST_PASSES)

    def run(
        self, batch: Seq[Work], count: int, news: int, enough: Callable[[], bool]
    ) -> Iterator[Found]:
        """Computes several passes; a text whose end comes takes no part in those after it.

        Args:
            batch: What `passes` was asked about.
            count: Its answer.
            news: A descriptor; where it can be read from, no further pass is begun.
            enough: Asked where each pass is told of; after that no more are begun.

        Yields:
            What was found, at least once; at least one token of each sequence at first.
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
        rows = [
            Row(params=each.request.sampling, position=len(each.ids), seen=each.seen)
            for each in sequences
        ]
        drawn = not all(row.bare for row in rows)
        options = RollOptions(
            news=news,
            drawings=[row.drawing for row in rows] if drawn else (),
            limits=[Limit(each.room, each.request.stop_ids) for each in sequences],
        )
        if self._runner.tells_of_each:
            for ids in self._runner.levels(segments, slots, options, enough):
                yield Found(1, [[token] if token >= 0 else [] for token in ids.tolist()])
            return
        yield self._whole(segments, slots, rows, options._replace(best=2 if drawn else 1))

    def _whole(
        self, segments: list[Segment], slots: np.ndarray, rows: list[Row], options: RollOptions
    ) -> Found:
        """All passes at once."""
        rolled = self._runner.roll(segments, slots, options)
        lines = rolled.ids[:, :, 0].T.tolist()
        found = [[token for token in line if token >= 0] for line in lines]
        for index, row in enumerate(rows):
            if not found[index]:  # compiled code was not sure
                assert rolled.output is not None
                logits = rolled.output.logits[index : index + 1]
                found[index] = sample(logits, [row]).tolist()
        return Found(len(rolled.ids), found)

    def _flows(self, work: Work) -> bool:
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
        )
