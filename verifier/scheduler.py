"""Which sequences run in the next step, with how many rows.

Owns the waiting line and the running set. Every step takes, in order of admission, the
decoding sequences that are ready (one row and a fair share of draft rows), then prefill
chunks, of the tenant first that was given the least and of its prompts the one that lacks
least, under one budget of rows, a quarter of which is kept for prefill where there is any. A
sequence is admitted when it is its turn (`verifier.waiting_line`) and its prompt fits into the
available blocks, and takes them. When a running one cannot grow, or a tenant of which nothing
runs finds no place, the youngest of the tenant that has most gives its own back and waits
again, to be computed once more later, but for what is still cached: bit for bit the same, so
nobody notices but the clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from common.model.blocks import BlockManager
from common.model.segment import tree_positions
from common.model.tree import TokenTree
from verifier.config import EngineConfig
from verifier.failures import Failures
from verifier.proposer import Proposer
from verifier.sequence import Sequence
from verifier.waiting_line import WaitingLine

_RETRY_STEPS = 16
"""Steps after which a prompt that found no room is tried again though no more has become free.
Part of it may be another's prefix by then, and its own cached one is kept from being evicted, but
looking takes time in proportion to that."""


class Work(NamedTuple):
    """One sequence's part of a step."""

    sequence: Sequence
    """Whose."""
    rows: int
    """Committed tokens to compute, from `sequence.computed` on."""
    tree: TokenTree | None
    """What to check; set where the rows reach the last committed token."""

    @property
    def batch_rows(self) -> int:
        """Rows it takes of the pass."""
        return self.rows - 1 + len(self.tree) if self.tree is not None else self.rows


class Scheduler:
    """Decides each step's batch.

    Args:
        config: Sizes.
        blocks: The cache that sequences lease from.
        proposer: Finds what drafts for a sequence.
        failures: Told of drafts that fail.
    """

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        proposer: Callable[[Sequence], Proposer],
        failures: Failures,
    ) -> None:
        self._config, self._blocks, self._proposer = config, blocks, proposer
        self._failures = failures
        self.waiting = WaitingLine()
        self.running: list[Sequence] = []
        self.preemptions = 0
        """Times a sequence gave its blocks back and waited again."""
        # Whose prompt found no room, of how many available blocks, and for how many steps that is
        # not tried again.
        self._lacking = -1, 0, 0

    def admit(self) -> Iterator[Sequence]:
        """Lets in whose turn it is, as long as there is room.

        Yields:
            Those that were never in before; one that is removed at once leaves its place to others.
        """
        while (sequence := self.waiting.first()) is not None:
            self._make_way(sequence)
            if len(self.running) >= self._config.max_running or self._still_lacks(sequence):
                return
            computed = sequence.lease.reuse_prefix(sequence.ids)
            if not sequence.lease.reserve(len(sequence.ids) + 1):
                sequence.lease.release()
                self._lacking = sequence.ticket, self._blocks.available, _RETRY_STEPS
                return
            sequence.computed = computed
            self.waiting.admit(sequence, sequence.pending)
            self.running.append(sequence)
            if not sequence.begun:
                sequence.counts.cached_tokens = computed
                yield sequence

    def _still_lacks(self, sequence: Sequence) -> bool:
        """Whether a sequence need not be tried: it found no room, and there is no more now."""
        ticket, available, steps = self._lacking
        if ticket != sequence.ticket or self._blocks.available > available or not steps:
            return False
        self._lacking = ticket, available, steps - 1
        return True

    def _make_way(self, newcomer: Sequence) -> None:
        """Has a tenant that has several running give one up for the first of one that has none,
        where there is no room and that makes some."""
        needed = -(-(len(newcomer.ids) + 1) // self._blocks.block_tokens)
        missing = needed - self._blocks.available  # nobody holds what is cached of its tenant
        if len(self.running) < self._config.max_running and missing <= 0:
            return
        tenants = self._tenants()
        if not tenants or newcomer.tenant in tenants:
            return
        victim = self._victim(tenants)
        if tenants[victim.tenant] > 1 and missing <= victim.lease.sole_blocks:
            self._preempt(victim)

    def schedule(self, now: float) -> list[Work]:
        """Chooses the next batch, of those admitted; empty where nothing is ready.

        Args:
            now: Seconds, of the monotonic clock.
        """
        decoding = [
            sequence
            for sequence in self.running
            if sequence.pending == 1 and self._ready(sequence, now)
        ]
        prefilling = [sequence for sequence in self.running if sequence.pending > 1]
        batch = self._decode(decoding, quota=self._prefill_quota if prefilling else 0)
        if prefilling:
            budget = self._config.max_batch_tokens - sum(work.batch_rows for work in batch)
            batch += self._prefill(prefilling, budget)
        return [work for work in batch if work.sequence in self.running]

    def _decode(self, decoding: list[Sequence], quota: int) -> list[Work]:
        """One row for everyone who decodes; what is left over, less the quota, goes to drafts."""
        spare = max(self._config.max_batch_tokens - len(decoding) - quota, 0)
        batch = []
        for index, sequence in enumerate(decoding):
            if sequence not in self.running:  # preempted for one before it
                continue
            share = spare // (len(decoding) - index)
            tree = self._propose(sequence, min(share, sequence.room - 1))
            work = self._fit(sequence, 1, tree)
            if work is not None:
                batch.append(work)
                spare -= work.batch_rows - 1
                self.waiting.charge(sequence, work.batch_rows)
        return batch

    def _prefill(self, prefilling: list[Sequence], budget: int) -> list[Work]:
        """Chunks of prompts, which for some end them.

        A quarter is kept for the first in line, so that shorter ones do not overtake it for ever.
        """
        first = min(prefilling, key=self.waiting.rows)
        kept = min(first.pending, -(-budget // 4))
        budget -= kept
        batch = []
        for sequence in sorted(
            prefilling, key=lambda each: (self.waiting.rows(each), each.pending)
        ):
            if sequence is first:
                budget += kept
            rows = min(sequence.pending, budget)
            if rows < 1 or sequence not in self.running:
                continue
            whole = rows == sequence.pending
            work = self._fit(sequence, rows, TokenTree(sequence.ids[-1]) if whole else None)
            if work is not None:
                batch.append(work)
                budget -= rows
        return batch

    def _ready(self, sequence: Sequence, now: float) -> bool:
        try:
            return self._proposer(sequence).ready(sequence, now)
        except Exception as error:  # a draft is never worth the thread that owns the model
            self._failures.add("draft", error, sequence.names)
            return True

    def _propose(self, sequence: Sequence, budget: int) -> TokenTree:
        tree = TokenTree(sequence.ids[-1])
        tree.owner = sequence.method
        try:
            self._proposer(sequence).propose(sequence, tree, max(budget, 0))
        except Exception as error:  # as above
            self._failures.add("draft", error, sequence.names)
            return TokenTree(sequence.ids[-1])
        return tree

    @property
    def _prefill_quota(self) -> int:
        return self._config.max_batch_tokens // 4

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is, and frees its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.lease.release()

    def _fit(self, sequence: Sequence, rows: int, tree: TokenTree | None) -> Work | None:
        """Reserves cache for a piece of work: without its draft, or at others' cost, if need be."""
        end = sequence.computed + rows
        if tree is not None and len(tree) > 1:
            if sequence.lease.reserve(end - 1 + tree_positions(tree)):
                return Work(sequence, rows, tree)
            tree = TokenTree(tree.ids[0])
        while not sequence.lease.reserve(end):
            victim = self._victim(self._tenants())
            self._preempt(victim)
            if victim is sequence:
                return None
        return Work(sequence, rows, tree)

    def _victim(self, tenants: Counter[bytes]) -> Sequence:
        """Who gives way: the youngest of the tenant that has most running; never the oldest of
        all, so that there is progress."""
        return max(reversed(self.running), key=lambda each: tenants[each.tenant])

    def _tenants(self) -> Counter[bytes]:
        """How many run, by tenant."""
        return Counter(each.tenant for each in self.running)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        sequence.lease.release()
        sequence.computed = 0
        self.waiting.put_back(sequence)
