"""The verifier's engine: one step is schedule, run, commit.

Owns the steps: what a batch computes, and what becomes of it. What a round makes of a text is the
committer's, how texts begin and end is `verifier.lives`'. One thread calls `step`; others hand it
work through `submit`, `cancel` and `post`, which only leave a note in the inbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from common import accelerator, processors
from common.inbox import Reachable, attempt
from common.model.medusa.heads import MedusaHeads
from common.model.runner import Runner
from common.step_meter import StepMeter
from verifier.acceptance import rules
from verifier.acceptance.base import Scores
from verifier.acceptance.typical import Typical
from verifier.choice import MethodChoice
from verifier.committer import Committer
from verifier.config import EngineConfig
from verifier.cost import StepCost
from verifier.drafting.link import LinkSource
from verifier.failures import Failures
from verifier.gates.crowd import Crowd
from verifier.gauges import Gauges, Load
from verifier.intake import Intake
from verifier.lives import Lives
from verifier.methods import Head, Methods, Parts
from verifier.pool.config import LookaheadConfig
from verifier.pool.shared import SharedPools
from verifier.rolling import Rolling
from verifier.scheduler import Scheduler, Work
from verifier.scoring import Chunk, score
from verifier.sequence import Event, Limits, Listener, Request, validate
from verifier.totals import Totals

_SOON_S = 0.01
"""How soon texts are asked again whether they are ready, where nobody can say when."""

_Found = TypeVar("_Found")
"""What passes found for one text."""


class Engine(Reachable):
    """Generates tokens for many requests at once.

    Args:
        runner: The target model.
        config: Sizes.
        links: Finds drafters; the default knows none.
        cost: Of its steps, as measured on this machine.
        heads: Medusa's, made for this model.
        eagle: A head that goes on from the target's states, for which the runner was made.
        lookahead: Sizes of lookahead decoding.
        shared: N-grams of other sequences.
        interval_s: Time between two messages of one stream, in seconds; see `VerifierConfig`.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        links: LinkSource | None = None,
        *,
        cost: StepCost | None = None,
        heads: MedusaHeads | None = None,
        eagle: Head | None = None,
        lookahead: LookaheadConfig | None = None,
        shared: SharedPools | None = None,
        interval_s: float = 0.0,
    ) -> None:
        super().__init__()
        self._runner = runner
        self._config = config
        self._cost = cost or StepCost()
        self._rolling = Rolling(runner, self._cost, interval_s)
        most = processors.count() if runner.loaded.device.type == "cpu" else 0
        self.totals = Totals()
        """What was done so far."""
        self.failures = Failures()
        """What failed and was lived with."""
        parts = Parts(
            config=config,
            cost=self._cost,
            crowd=Crowd(self.totals),
            links=links if links is not None else _no_links,
            heads=heads,
            eagle=eagle,
            lookahead=lookahead or LookaheadConfig(),
            processors=most,
            fills=0 < most < 2 * runner.threads,
            parameters=runner.loaded.parameters,
            shared=shared,
        )
        self.methods = Methods(parts)
        """What drafts."""
        acceptances = rules(Typical(threshold=config.typical_threshold, alpha=config.typical_alpha))
        self._committer = Committer(runner, acceptances, self.methods, self.totals, self.failures)
        self._scheduler = Scheduler(config, runner.pool.blocks, self.methods.of, self.failures)
        self.limits = Limits(
            vocab_size=runner.loaded.vocab_size,
            max_len=runner.max_len,
            max_draft_tokens=config.max_draft_tokens,
            methods=tuple(self.methods.single),
            acceptances=tuple(acceptances),
        )
        """What requests are checked against."""
        self._intake = Intake(config, runner.pool.blocks)
        choice = MethodChoice(tuple(self.methods.single), self._cost)
        self._lives = Lives(
            self._intake, choice, self.methods, self._scheduler, runner, self.totals, self.failures
        )
        self._asked_at = 0.0  # when texts were last asked whether they are ready
        self._ran = False  # the last step had a batch
        self._heard = False  # there were notes when they were taken last
        self._meter, self._gauges = StepMeter(self.totals.steps), Gauges(config)

    # From any thread.

    def submit(self, request: Request, listener: Listener) -> int:
        """Takes a request on.

        Args:
            request: What to generate.
            listener: Told of news, on the engine's thread.

        Returns:
            A ticket for `cancel`.

        Raises:
            InvalidArgument: The request cannot be served by anyone.
            FailedPrecondition: It cannot be served here.
            ResourceExhausted: Too many wait already.
            Unavailable: The engine is draining.
        """
        validate(request, self.limits)
        sequence = self._intake.take(request, listener)
        self.post(partial(self._scheduler.waiting.append, sequence))
        return sequence.ticket

    def cancel(self, ticket: int) -> None:
        """Ends a request without a word; unknown and finished ones are fine."""
        sequence = self._intake.leave(ticket)
        if sequence is not None:
            self.post(partial(self._lives.leave, sequence))

    def stop_accepting(self) -> None:
        """Refuses requests from now on; those inside go on."""
        self._intake.accepting = False

    @property
    def accepting(self) -> bool:
        """Whether requests are taken on."""
        return self._intake.accepting

    @property
    def live(self) -> int:
        """Requests inside."""
        return len(self._intake)

    @property
    def preemptions(self) -> int:
        """Times that a sequence gave its cache back and waited again."""
        return self._scheduler.preemptions

    def load(self) -> Load:
        """How busy the engine is."""
        blocks = self._runner.pool.blocks
        running, now = len(self._scheduler.running), time.monotonic()
        waiting = max(self.live - running, 0)
        queue_wait_s = self._gauges.queue_wait_s.at(now, held=waiting > 0)
        return Load(
            running=running,
            waiting=waiting,
            blocks_total=blocks.count,
            blocks_free=blocks.available,
            step_ms=self._meter.mean_ms,
            steps=self._meter.steps,
            tokens=self.totals.tokens,
            queue_wait_ms=max(queue_wait_s, self._intake.longest_wait_s(now)) * 1e3,
            occupancy=self._gauges.occupancy.at(now),
            draft_wait_ms=self.methods.draft.wait.at(now) * 1e3,
            plain_step_ms=self._cost.plain_s * 1e3,
        )

    # From the engine's thread.

    def step(self) -> bool:
        """Runs one batch; False where nothing was ready."""
        self._take_notes(feeds=not self._ran)  # else they were read at the end of the last pass
        self._admit()
        now = self._asked_at = time.monotonic()
        batch = self._scheduler.schedule(now)
        self._ran = bool(batch)
        if not batch:
            return False
        self._gauges.stepping(batch, len(self._scheduler.running), now)
        behind = [len(work.sequence.ids) for work in batch if work.tree is not None]
        if behind:
            self._cost.stand_behind(sum(behind) / len(behind))
        tokens, started = self.totals.tokens, time.perf_counter()
        passes = self._roll(batch)
        if not passes:
            self._run_and_commit(batch)
            passes = 1
        seconds = (time.perf_counter() - started) / passes
        self._meter.add(seconds, passes)
        # A text alone goes on from pass to pass only where nothing is drafted: that this saves time
        # does not say that a pass with drafts takes less, too.
        alone = passes > 1 and len(batch) == 1
        if not alone and all(work.tree is not None and work.rows == 1 for work in batch):
            self._cost.observe(
                rows=sum(work.batch_rows for work in batch),
                sequences=len(batch),
                tokens=(self.totals.tokens - tokens) // passes,
                seconds=seconds,
            )
        return True

    def wait(self, most_s: float = 0.5) -> None:
        """Sleeps until there is a note, or until a draft is no longer waited for."""
        try:
            deadline = self.methods.deadline(self._asked_at)
        except Exception as error:  # a draft is never worth the thread that owns the model
            self.failures.add("draft", error, {})
            deadline = time.monotonic() + _SOON_S
        if deadline is not None:
            most_s = min(most_s, deadline - time.monotonic())
        self._inbox.wait(most_s)

    def _admit(self) -> None:
        """Has texts begin whose turn it is; drafters hear of them before the pass."""
        for sequence in self._scheduler.admit():
            self._lives.begin(sequence)
        attempt(self.methods.flush)

    def _take_notes(self, *, feeds: bool = True) -> None:
        self._heard = self._inbox.take(feeds=feeds)
        if self._heard:
            attempt(self.methods.flush)

    def _roll(self, batch: list[Work]) -> int:
        """Runs several passes, where they may be one call, and commits what they bring.

        Returns:
            How many; 0 where nothing was run.
        """
        if len(batch) < len(self._scheduler.running):
            return 0
        of, enough = self.methods.of, partial(self._disturbed, batch)
        passes, self._heard = 0, False
        try:
            count = self._rolling.passes(batch, lambda each: of(each).rests(each))
            if count < 2:
                return 0
            for found in self._rolling.run(batch, count, self._inbox.fileno(), enough):
                charged = int(not passes)  # of the first as they were scheduled
                passes += found.passes  # first: what was found is not to be computed again
                self._take_notes()
                self._commit(batch, found.ids, partial(self._keep_several, charged=charged))
        except Exception as error:
            accelerator.check(self._runner.loaded.device)
            self.failures.add("passes", error, _names(batch))
        return passes

    def _disturbed(self, batch: list[Work]) -> bool:
        """Whether texts that pass after pass is computed of are no longer those that run."""
        return self._heard or any(work.sequence.gone for work in batch)

    def _run_and_commit(self, batch: list[Work]) -> None:
        started, scores = time.monotonic(), None
        try:
            tap = self._committer.reads(batch)
            scores = score(self._runner, batch, self._committer.rules, tap=tap)
        except Exception as error:
            accelerator.check(self._runner.loaded.device)
            if len(batch) == 1:
                self._lives.fail(batch[0].sequence, error)
                return
            self.failures.add("pass", error, _names(batch))
        if scores is None:  # the error is gone by now, and what it held of the pass' memory
            for work in batch:  # nothing was committed, and writing the cache again is harmless
                if not work.sequence.gone:  # one may be cancelled meanwhile
                    self._run_and_commit([work])
            return
        verified = time.monotonic()
        for work in batch:
            if work.sequence.stopwatch is not None:
                work.sequence.stopwatch.stepped(started, verified)
        self._take_notes()  # branches that came meanwhile are for the outcomes known only now
        self._commit(batch, scores, self._keep)

    def _commit(
        self, batch: list[Work], found: list[_Found], keep: Callable[[Work, _Found], Event | None]
    ) -> None:
        """Keeps what passes found, and tells of it: drafters first, and then everyone.

        A text for which something fails has that error for an answer; the others go on.

        Args:
            batch: What was computed.
            found: For each text.
            keep: Commits a text's; returns what to tell, if anything.
        """
        news = []
        for work, of_text in zip(batch, found, strict=True):
            if work.sequence.gone:
                continue
            try:
                event = keep(work, of_text)
            except Exception as error:
                self._lives.fail(work.sequence, error)
                continue
            if event is not None:
                news.append((work.sequence, event))
                if event.finish:
                    attempt(partial(self._lives.finish, work.sequence))
        attempt(self.methods.flush)
        for sequence, event in news:
            self._lives.tell(sequence, event)

    def _keep(self, work: Work, scores: Scores | Chunk) -> Event | None:
        """What one pass found; nothing where it computed a part of a prompt."""
        if isinstance(scores, Chunk):
            self._committer.chunk(work.sequence, work.rows, scores)
            return None
        return self._committer.commit(work.sequence, work.rows, scores)

    def _keep_several(self, work: Work, ids: list[int], charged: int) -> Event | None:
        """The tokens of several passes, for so many of which the text was charged before."""
        if not ids:
            return None
        assert work.tree is not None
        event = self._committer.commit_several(work.sequence, work.tree, ids)
        self._scheduler.waiting.charge(work.sequence, len(event.ids) - charged)
        return event


def _names(batch: list[Work]) -> dict[str, list[str]]:
    """What a batch goes by in logs."""
    return {"requests": [work.sequence.request.request_id for work in batch]}


def _no_links(address: str) -> None:
    """An engine without links reaches no drafter, and goes on plainly."""
