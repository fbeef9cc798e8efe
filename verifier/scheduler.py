"""Which sequences run in the next step, with how many rows.

Owns the waiting line and the running set. Every step takes, in order of admission, the
decoding sequences that are ready (one row and a fair share of draft rows), then prefill
chunks, of the tenant first that was given the least, under one budget of rows, a quarter of
which is kept for prefill where there is any. A sequence is admitted when it is its turn
(`verifier.waiting_line`) and its prompt fits into the available blocks, and takes them; when a
running one cannot grow, the youngest gives its blocks back and waits again, to be computed
once more later: bit for bit the same, so nobody notices but the clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from common.model.segment import tree_positions
from common.model.tree import TokenTree
from verifier.config import EngineConfig
from verifier.methods.base import Proposer
from verifier.sequence import Sequence
from verifier.waiting_line import WaitingLine

_log = logging.getLogger(__name__)


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
        proposer: Finds what drafts for a sequence.
    """

    def __init__(self, config: EngineConfig, proposer: Callable[[Sequence], Proposer]) -> None:
        self._config = config
        self._proposer = proposer
        self.waiting = WaitingLine()
        self.running: list[Sequence] = []
        self.preemptions = 0
        """Times a sequence gave its blocks back and waited again."""

    def schedule(self, now: float) -> list[Work]:
        """Chooses the next batch; empty where nothing is ready.

        Args:
            now: Seconds, of the monotonic clock.
        """
        self._admit()
        decoding = [
            sequence
            for sequence in self.running
            if sequence.pending == 1 and self._ready(sequence, now)
        ]
        prefilling = [sequence for sequence in self.running if sequence.pending > 1]
        prefilling.sort(key=self.waiting.rows)
        batch = self._decode(decoding, quota=self._prefill_quota if prefilling else 0)
        budget = self._config.max_batch_tokens - sum(work.batch_rows for work in batch)
        for sequence in prefilling:
            if sequence not in self.running or budget <= 0:
                continue
            rows = min(sequence.pending, budget)
            whole = rows == sequence.pending
            work = self._fit(sequence, rows, TokenTree(sequence.ids[-1]) if whole else None)
            if work is not None:
                batch.append(work)
                budget -= rows
        return [work for work in batch if work.sequence in self.running]

    def _decode(self, decoding: list[Sequence], quota: int) -> list[Work]:
        """One row for everyone who decodes; what is left over, less the quota, goes to drafts."""
        limit = self._config.max_batch_tokens
        spare = max(limit - len(decoding) - quota, 0)
        batch = []
        for index, sequence in enumerate(decoding[:limit]):
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

    def _ready(self, sequence: Sequence, now: float) -> bool:
        try:
            return self._proposer(sequence).ready(sequence, now)
        except Exception:  # a draft is never worth the thread that owns the model
            _log.exception("a proposer failed", extra={"method": sequence.method})
            return True

    def _propose(self, sequence: Sequence, budget: int) -> TokenTree:
        tree = TokenTree(sequence.ids[-1])
        tree.owner = sequence.method
        try:
            self._proposer(sequence).propose(sequence, tree, max(budget, 0))
        except Exception:  # as above
            _log.exception("a proposer failed", extra={"method": sequence.method})
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

    def _admit(self) -> None:
        while len(self.running) < self._config.max_running:
            sequence = self.waiting.first()
            if sequence is None:
                return
            computed = sequence.lease.reuse_prefix(sequence.ids)
            if not sequence.lease.reserve(len(sequence.ids) + 1):
                sequence.lease.release()
                return
            sequence.computed = computed
            if sequence.output_len == 0:
                sequence.counts.cached_tokens = sequence.computed
            self.waiting.admit(sequence, sequence.pending)
            self.running.append(sequence)

    def _fit(self, sequence: Sequence, rows: int, tree: TokenTree | None) -> Work | None:
        """Reserves cache for a piece of work: without its draft, or at others' cost, if need be."""
        end = sequence.computed + rows
        if tree is not None and len(tree) > 1:
            if sequence.lease.reserve(end - 1 + tree_positions(tree)):
                return Work(sequence, rows, tree)
            tree = TokenTree(tree.ids[0])
        while not sequence.lease.reserve(end):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return None
        return Work(sequence, rows, tree)

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(sequence)
        sequence.lease.release()
        sequence.computed = 0
        self.waiting.put_back(sequence)
