"""What a step of the engine costs by its rows: the ground of every choice of how much to draft.

A table is measured before the engine serves, and what further positions before a row add to it.
From then on what steps without drafts really take, beside a drafter and other programs, scales it:
some of them in a row, for after a wait the caches are not what they were. Where all have drafts,
nothing more is heard of such steps, and one slow moment would be believed for as long as drafts
seem to be worth it because of that. So what a text's steps with drafts take bounds them: fewer rows
do not take longer, not even where all that a step takes over the table comes once a step, whatever
its rows.

A sequence that drafts k nodes pays their share of a step that runs for everybody, so methods
compare (tokens of all) / (seconds of the step) with and without them.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence as Seq
from typing import NamedTuple

from common.model.kv_cache import KvLease
from common.model.runner import Runner
from common.model.segment import Segment, tree_positions
from common.model.tree import TokenTree
from common.step_table import Others, StepTable, Worth, seconds_of

_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
_ROUNDS, _MOST_ROUNDS = 5, 60
_ENOUGH_S, _MOST_S = 0.4, 2.0
"""All sizes are timed so often at least, and until timed passes came to the former; or to the
latter, however few they were: what takes long is not as easily disturbed."""
_LONG_S = 0.01
"""A pass as long as this finds as little in the caches after another as after its like."""

_BEFORE, _FAR_BEFORE = 128, 1024
"""Positions before a measured step, and before one that tells what more of them cost: what they
hold does not matter, that it is read does."""
_FAR_ROWS = (1, 8, 32)
"""Of a step behind the latter: what more positions cost is about a line over rows."""
_ENOUGH_FAR = 3 * _BEFORE
"""Fewer positions say nothing: they cost less than what else differs between two steps."""
_STRIDE = 64
"""Positions behind which a step counts as alike: what is read from the tables is kept."""

_SMOOTHING = 0.1
_COLD = 8
"""Steps without drafts, after one with drafts, that do not tell how long they take in a row."""

_ENOUGH_STEPS = 20
"""Steps with drafts whose average says that the machine is faster than it was."""

_MOST_KNOWN = 4096
_FAR = 3.0
"""A step that took more than so many times what was expected counts as if it had taken that: it
may have paid for something else."""

FLAT: StepTable = ((1, 0.001), (64, 0.001))
"""A machine on which more rows cost nothing; until measured, the best guess for large ones."""
NO_MORE: StepTable = ((1, 0.0), (64, 0.0))
"""One on which more positions do not, either."""


class Measured(NamedTuple):
    """What steps take on an idle engine."""

    table: StepTable
    """Seconds by rows, behind `_BEFORE` positions."""
    position_s: StepTable = NO_MORE
    """Seconds that each further position adds, by rows."""


class StepCost:
    """Seconds of a step, as measured at the start and scaled by what is seen.

    Args:
        table: See `Measured`.
        position_s: The same.
    """

    def __init__(self, table: StepTable = FLAT, position_s: StepTable = NO_MORE) -> None:
        self._table, self._position_s = table, position_s
        self._further = 0  # positions before a row, over those that were measured
        self._known: dict[float, float] = {}  # what was read from the tables
        self._plain = _Ratio(_SMOOTHING)  # of steps without drafts, which scales the table
        self._drafted = _Ratio(1 / _ENOUGH_STEPS)  # the most it can be, by those with drafts since
        self._in_a_row = 0  # of steps without drafts
        self._rows = self._tokens = 0.0  # of the others, in the last step
        self._sequences = 1  # in the last step

    def stand_behind(self, positions: float) -> None:
        """Has what follows be of rows behind so many positions, on average over sequences."""
        further = round((positions - _BEFORE) / _STRIDE) * _STRIDE
        if further != self._further:
            self._further, self._known = further, {}

    def table_behind(self, positions: int) -> StepTable:
        """The table as it would have been measured behind so many positions."""
        return [(rows, self._read(rows, positions - _BEFORE)) for rows, _ in self._table]

    def observe(self, *, rows: int, sequences: int, tokens: int, seconds: float) -> None:
        """Takes a step of decoding sequences only, with or without drafts.

        Args:
            rows: Rows it ran.
            sequences: How many shared it.
            tokens: Tokens they committed.
            seconds: How long it took.
        """
        self._in_a_row = self._in_a_row + 1 if rows == sequences else 0
        expected = self._measured(rows)
        if self._in_a_row > _COLD:
            self._plain.add(seconds / expected)
            self._drafted.restart()
        elif sequences > 1:  # rows of several are computed side by side: the table says too much
            self._drafted.restart()
        elif not self._in_a_row:
            over = seconds - expected
            self._drafted.add(1 + over / (self._measured(1) if over > 0 else expected))
            if self._drafted.steps >= _ENOUGH_STEPS:
                self._plain.mean = min(self._plain.mean, self._drafted.mean)
        self._sequences = sequences
        others = (sequences - 1) / sequences
        self._rows, self._tokens = rows * others, tokens * others

    def step_s(self, rows: float) -> float:
        """Seconds of a step of so many rows."""
        return self._measured(rows) * self._plain.mean

    @property
    def others(self) -> Others:
        """What the others have in a step, as in the last one."""
        return self._rows, self._tokens

    @property
    def plain_s(self) -> float:
        """Seconds of a step of the present batch without drafts."""
        return self.step_s(self._sequences)

    def unloaded_s(self, nodes: int) -> float:
        """The same as `round_s`, on a machine as idle as when it was measured."""
        return self._measured(self._rows + 1 + nodes)

    def round_s(self, nodes: int) -> float:
        """Seconds of a step in which one sequence has so many draft nodes."""
        return self.step_s(self._rows + 1 + nodes)

    def worth(self) -> Worth:
        """Of draft nodes of one sequence that has none yet."""
        return Worth(self._measured, self.others)

    def rate(self, expected: float, seconds: float) -> float:
        """Tokens a second, of everybody.

        Args:
            expected: Tokens one sequence commits.
            seconds: How long the step takes.
        """
        return (self._tokens + expected) / max(seconds, 1e-9)

    def _measured(self, rows: float) -> float:
        known = self._known  # another thread may ask while the engine's moves on
        seconds = known.get(rows)
        if seconds is None:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            seconds = known[rows] = self._read(rows, self._further)
        return seconds

    def _read(self, rows: float, further: float) -> float:
        least, more = seconds_of(self._table, rows), seconds_of(self._position_s, rows)
        return max(least + more * further, 0.5 * least)  # before none a line says too little


class _Ratio:
    """Mean of what steps took over what was expected, in which none counts for much.

    Args:
        share: Of the latest.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.mean, self.steps = 1.0, 0

    def add(self, ratio: float) -> None:
        """Takes a step."""
        self.steps += 1
        ratio = min(ratio, _FAR * self.mean)
        self.mean += max(self._share, 1 / self.steps) * (ratio - self.mean)

    def restart(self) -> None:
        """Has the next step be the first."""
        self.steps = 0


def measure(runner: Runner, rows: Seq[int] = _ROWS) -> Measured:
    """Times trees of each size on an idle engine, which also sets its kernels up.

    Args:
        runner: The target.
        rows: Which sizes; those over the model's length are left out.

    Returns:
        Both never falling with rows: the least of a few, for what takes longer is not the step.
        Nothing of further positions where the model has few.
    """
    sizes = [count for count in rows if count < runner.max_len]
    room = max(runner.max_len - 2 * max(sizes), 0)
    before, far = min(_BEFORE, room), min(_FAR_BEFORE, room)
    steps = [(count, before) for count in sizes]
    far_sizes = [count for count in sizes if count in _FAR_ROWS] if far >= _ENOUGH_FAR else []
    steps += [(count, far) for count in far_sizes]
    trees = {count: _tree(count, runner.loaded.vocab_size) for count in sizes}
    lease = runner.pool.lease(far + max(map(tree_positions, trees.values())))
    segments = [_segment(trees[count], behind, lease) for count, behind in steps]
    set_up = 2 if runner.loaded.device.type == "cuda" else 1  # there the second one is captured
    least, timed_s = [math.inf] * len(steps), 0.0
    for done in range(1, _MOST_ROUNDS + 1):
        # In turns: what else runs on a machine comes and goes, and would be taken for a size's own.
        took = [_time(runner, segment, set_up if done == 1 else 0) for segment in segments]
        least = [min(both) for both in zip(least, took, strict=True)]
        timed_s += sum(took)
        if timed_s > (_ENOUGH_S if done >= _ROUNDS else _MOST_S):
            break
    lease.release()
    table = list(zip(sizes, itertools.accumulate(least[: len(sizes)], max), strict=True))
    if len(far_sizes) < 2:
        return Measured(table)
    near = dict(table)
    more = (
        max(seconds - near[count], 0.0) / (far - before)
        for count, seconds in zip(far_sizes, least[len(sizes) :], strict=True)
    )
    return Measured(table, list(zip(far_sizes, itertools.accumulate(more, max), strict=True)))


def _segment(tree: TokenTree, before: int, lease: KvLease) -> Segment:
    return Segment(tree.ids, before, lease.slots, tree=tree, wanted=range(len(tree)))


def _tree(nodes: int, vocab_size: int) -> TokenTree:
    """A chain of half the nodes with the others beside it: between a draft and a bush.

    Its tokens are spread over the vocabulary: where rows choose experts, alike ones would read the
    same few.
    """
    first, *ids = (node * vocab_size // nodes for node in range(nodes))
    tree = TokenTree(first)
    end = tree.add_path(ids[: nodes // 2])
    chain = [0, *tree.path(end)]
    for beside, token in enumerate(ids[nodes // 2 :]):
        tree.add(chain[beside], token)
    return tree


def _time(runner: Runner, segment: Segment, set_up: int) -> float:
    """Seconds of a pass, after so many that set up kernels and graphs of its size.

    A short one comes after another in any case: what the caches hold of the weights hangs on that.
    """
    for _ in range(set_up):
        _pass(runner, segment)
    seconds = _pass(runner, segment)
    return _pass(runner, segment) if seconds < _LONG_S and not set_up else seconds


def _pass(runner: Runner, segment: Segment) -> float:
    started = time.perf_counter()
    runner.forward([segment]).logits.argmax(-1).tolist()  # the read waits for the device
    return time.perf_counter() - started
