"""The drafter's engine: drafts for all its sessions in one batch, one token a step.

A step takes every mirror that has something to compute: catching up with what was committed,
or the next token of its branch. Sessions join and leave between steps: what verifiers say of them
goes to `sessions`. One thread calls `step`; the others leave notes with `post`.
"""

from __future__ import annotations

import logging
import time

from common import accelerator
from common.inbox import Reachable
from common.model.runner import Runner
from common.step_meter import StepMeter
from drafter.config import EngineConfig
from drafter.gauges import Gauges, Load
from drafter.item import Item
from drafter.mirror import Mirror
from drafter.mirrors import Mirrors
from drafter.passes import Passes
from drafter.reply import Key, Replies
from drafter.sessions import Sessions
from drafter.totals import Totals

_log = logging.getLogger(__name__)


class DraftEngine(Reachable):
    """Mirrors sessions and drafts for them.

    Args:
        runner: The draft model.
        config: Sizes.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        super().__init__()
        self._runner = runner
        self._config = config
        self._passes = Passes(runner, config.max_draft_tokens, self._inbox.fileno())
        self._gauges = Gauges(config)
        self.totals = Totals()
        """What else was done so far."""
        self._meter, self._tokens = StepMeter(self.totals.steps), 0
        self._replies = Replies(self.totals)
        self._mirrors = Mirrors(config, runner.pool.blocks, self._replies.dropped)
        self.sessions = Sessions(runner, config, self._mirrors, self._replies, self.totals)
        """Told what verifiers say; by notes."""

    # From any thread.

    def stop_accepting(self) -> None:
        """Refuses sessions from now on; those mirrored go on."""
        self.sessions.accepting = False

    @property
    def accepting(self) -> bool:
        """Whether sessions are mirrored."""
        return self.sessions.accepting

    @property
    def live(self) -> int:
        """Mirrors."""
        return len(self._mirrors)

    def load(self) -> Load:
        """How busy the engine is."""
        blocks = self._runner.pool.blocks
        mirrors = self._mirrors.items()
        drafting = sum(1 for _, mirror in mirrors if mirror.round is not None)
        now = time.monotonic()
        return Load(
            sessions=len(mirrors),
            drafting=drafting,
            blocks_total=blocks.count,
            blocks_free=blocks.available,
            step_ms=self._meter.mean_ms,
            steps=self._meter.steps,
            tokens=self._tokens,
            stale=self.sessions.stale,
            occupancy=self._gauges.occupancy.at(now),
            draft_wait_ms=self._gauges.wait_s.at(now) * 1e3,
        )

    # The loop.

    def step(self) -> bool:
        """Computes one batch; False where nothing was to be done."""
        self._inbox.take()
        self._replies.send()  # what was drafted ahead waits for no pass
        batch = self._schedule()
        if batch:
            self._gauges.stepping(batch, len(self._mirrors), time.monotonic())
            passes, started = 1, time.perf_counter()
            try:
                passes, tokens = self._passes.run(batch)
                self._tokens += tokens
                self._commit(batch)
            except Exception:  # one bad batch must not end the thread that owns the model
                accelerator.check(self._runner.loaded.device)
                _log.exception("draft step failed", extra={"sessions": len(batch)})
                for item in batch:
                    self._mirrors.give_up(item.key, "the engine failed")
            seconds = (time.perf_counter() - started) / passes
            self._meter.add(seconds, passes)
        self._replies.send()
        for item in batch:
            item.mirror.learn()
        return bool(batch)

    def wait(self, most_s: float = 0.5) -> None:
        """Sleeps until there is a note."""
        self._inbox.wait(most_s)

    def _schedule(self) -> list[Item]:
        """What to compute, mirror by mirror.

        Those with a branch to make come first, then those that catch up; where there are neither,
        branches go on ahead of their next outcome, as far as there is room.
        """
        mirrors = [item for item in self._mirrors.items() if item[1].due or item[1].round]
        due = [item for item in mirrors if item[1].due]
        return self._gather(due) or self._gather(mirrors)

    def _gather(self, mirrors: list[tuple[Key, Mirror]]) -> list[Item]:
        """What these mirrors have to compute, under the budget of a step."""
        budget = self._config.max_batch_tokens
        batch: list[Item] = []
        # A text that begins, or begins anew, takes all of a budget, and others wait for a branch.
        for key, mirror in sorted(mirrors, key=lambda item: _urgency(item[1])):
            item = self._item(key, mirror, budget) if key in self._mirrors else None
            if item is not None:
                batch.append(item)
                budget -= item.rows
        return [item for item in batch if item.key in self._mirrors]

    def _item(self, key: Key, mirror: Mirror, budget: int) -> Item | None:
        pending = mirror.text.pending
        if pending:
            rows = min(pending, budget)
            ready = rows and self._mirrors.reserve(key, mirror, mirror.text.computed + rows)
            ends = [mirror.root] if rows == pending else []
            return Item(key, mirror, committed=rows, ends=ends) if ready else None
        if not mirror.scratch.capacity and not self._mirrors.reserve_scratch(key, mirror):
            return None
        while mirror.unplanned:
            try:
                mirror.look_ahead()
            except Exception:  # as with a bad batch
                _log.exception("planning failed")
                self._mirrors.give_up(key, "the engine failed")
                return None
            self._replies.branches(key, mirror)
        nodes = [node for node in mirror.frontier()[:budget] if mirror.place(node)]
        return Item(key, mirror, nodes=nodes, ends=nodes) if nodes else None

    def _commit(self, batch: list[Item]) -> None:
        """Grows the branches; hands over those that are finished."""
        for key, mirror, committed in ((item.key, item.mirror, item.committed) for item in batch):
            text = mirror.text
            text.computed += committed
            text.lease.publish(text.ids, text.computed)
            if not mirror.warm and text.pending == 0:
                mirror.warm = True
                self._replies.warm(key, mirror)
        for item in batch:
            for node in item.ends:
                item.mirror.chosen(node)
            self._replies.branches(item.key, item.mirror)


def _urgency(mirror: Mirror) -> tuple[bool, int]:
    """Those with a branch to make come first, of these those with least to catch up with."""
    return mirror.round is None, mirror.text.pending
