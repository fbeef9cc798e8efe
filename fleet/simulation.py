"""A fleet played through, event by event: what a plan is checked against.

Requests arrive at random times and go to the verifier and the drafter with the fewest. A verifier
prefills one prompt at a time and takes everybody who is ready into its next step, by turns where
both wait. At its start a step has its sessions' drafters draft ahead for every outcome; at its end
each outcome is drawn, and with it whether the next draft was made ahead or has to be asked for. A
drafter gives each of its jobs one token in every step, all in one batch; its memory holds every
session, which a plan sees to on average.

What is left out here is left out of the plan, too: preemption, cached prefixes, draft lengths that
differ by session, and steps taken without a draft that is late.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from fleet.estimate import Estimate
from fleet.layout import Layout
from fleet.workload import PlanConfig

_LEAST_REQUESTS = 1000
_FILLINGS = 3  # how often the sessions change before, and while, something is measured


@dataclass(frozen=True, kw_only=True)
class Played:
    """What was seen of the requests after the warm-up."""

    token_s: float
    """Mean seconds of an output token after the first."""
    first_token_s: float
    """Mean seconds to the first token."""
    verifier_busy: float
    """Share of the verifiers' time in steps and prefills."""
    drafter_busy: float
    """Share of the drafters' time in steps; 0 without drafters."""


@dataclass(eq=False)
class _Session:
    arrived_s: float
    tokens: int  # to write
    counts: bool  # whether it came after the warm-up
    drafter: _Drafter | None
    written: int = 0
    first_s: float = 0.0
    job: _Job | None = None
    waits: bool = False  # for `job`, to go on


@dataclass(eq=False)
class _Job:
    session: _Session
    verifier: _Verifier
    left: int  # steps
    rows: int
    arrived: bool = False  # at the verifier


@dataclass(eq=False)
class _Verifier:
    queue: deque[_Session] = field(default_factory=deque)  # wait for their prefill
    ready: list[_Session] = field(default_factory=list)
    running: int = 0
    busy: bool = False
    prefilled: bool = False  # rather than stepped, last
    busy_s: float = 0.0


@dataclass(eq=False)
class _Drafter:
    jobs: dict[_Job, None] = field(default_factory=dict)
    sessions: int = 0
    busy: bool = False
    busy_s: float = 0.0


def play(
    layout: Layout, config: PlanConfig, *, requests: int, warm_up: int, seed: int = 0
) -> Played:
    """Plays a fleet that can carry its load.

    Args:
        layout: Its machines and draft length.
        config: Models, traffic and costs.
        requests: How many to measure.
        warm_up: How many come before, to fill the fleet.
        seed: Decides arrivals, lengths and outcomes.
    """
    return _Play(layout, config, requests, warm_up, random.Random(seed)).run()


def check(layout: Layout, expected: Estimate, config: PlanConfig, seed: int = 0) -> Played:
    """Plays a fleet for long enough to compare it with what is expected of it.

    Args:
        layout: Its machines and draft length.
        expected: What the model says of it.
        config: Models, traffic and costs.
        seed: Decides arrivals, lengths and outcomes.
    """
    filled = round(_FILLINGS * expected.sessions)
    requests = max(_LEAST_REQUESTS, filled)
    return play(layout, config, requests=requests, warm_up=max(filled, 100), seed=seed)


class _Play:
    def __init__(
        self,
        layout: Layout,
        config: PlanConfig,
        requests: int,
        warm_up: int,
        chance: random.Random,
    ) -> None:
        self._config, self._chance = config, chance
        self._length = layout.draft_tokens
        self._half_way_s = config.round_trip_ms / 2e3
        self._context = config.traffic.context_tokens
        self._target, self._draft = layout.target(config), layout.draft(config)
        self._verifiers = [_Verifier() for _ in range(layout.verifiers)]
        self._drafters = [_Drafter() for _ in range(layout.drafters)]
        self._most = self._target.most_sequences(self._context)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._now = 0.0
        self._warm_up, self._left = warm_up, requests  # to arrive
        self._ended: list[tuple[_Session, float]] = []
        self._wanted = requests
        self._began = (0.0, 0.0, 0.0)  # the measuring: time, and busy seconds of both tiers

    def run(self) -> Played:
        """Plays until all that is measured has ended; others keep coming until then."""
        self._after(0.0, self._arrive)
        while len(self._ended) < self._wanted:
            self._now, _, action, arguments = heapq.heappop(self._events)
            action(*arguments)
        return self._played()

    def _after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (self._now + delay_s, next(self._order), action, arguments))

    # Requests come and go.

    def _arrive(self) -> None:
        traffic = self._config.traffic
        self._after(self._chance.expovariate(traffic.requests_per_s), self._arrive)
        half = traffic.output_tokens // 2
        tokens = traffic.output_tokens + self._chance.randint(-half, half)
        drafter = min(self._drafters, key=_sessions) if self._length else None
        session = _Session(self._now, max(tokens, 2), self._counts(), drafter)
        if drafter is not None:
            drafter.sessions += 1
        verifier = min(self._verifiers, key=lambda each: each.running + len(each.queue))
        verifier.queue.append(session)
        self._advance(verifier)

    def _counts(self) -> bool:
        if self._warm_up:
            self._warm_up -= 1
            self._began = (self._now, *self._busy_s())
            return False
        self._left -= 1
        return self._left >= 0

    def _end(self, session: _Session, verifier: _Verifier) -> None:
        verifier.running -= 1
        if session.drafter is not None:
            session.drafter.sessions -= 1
            self._withdraw(session)
        if session.counts:
            self._ended.append((session, self._now))

    # A verifier: a prefill, or a step with everybody who is ready.

    def _advance(self, verifier: _Verifier) -> None:
        if verifier.busy:
            return
        may_prefill = bool(verifier.queue) and verifier.running < self._most
        if may_prefill and not (verifier.ready and verifier.prefilled):
            session = verifier.queue.popleft()
            verifier.running += 1
            seconds = self._target.prefill_s(self._config.traffic.prompt_tokens)
            self._occupy(verifier, seconds, self._prefilled, session)
        elif verifier.ready:
            batch, verifier.ready = verifier.ready, []
            rows = len(batch) * (self._length + 1)
            seconds = self._target.step_s(len(batch), rows, self._context)
            for session in batch:
                self._ask(session, verifier, ahead=True)
            self._occupy(verifier, seconds, self._stepped, batch)

    def _occupy(
        self, verifier: _Verifier, seconds: float, then: Callable[..., None], what: Any
    ) -> None:
        verifier.busy = True
        verifier.prefilled = then == self._prefilled
        verifier.busy_s += seconds
        self._after(seconds, self._finish, verifier, then, what)

    def _finish(self, verifier: _Verifier, then: Callable[..., None], what: Any) -> None:
        verifier.busy = False
        then(verifier, what)
        self._advance(verifier)

    def _prefilled(self, verifier: _Verifier, session: _Session) -> None:
        session.written, session.first_s = 1, self._now
        self._wait(session, verifier)

    def _stepped(self, verifier: _Verifier, batch: list[_Session]) -> None:
        for session in batch:
            accepted = self._accepted()
            session.written += accepted + 1
            if session.written >= session.tokens:
                self._end(session, verifier)
            elif self._length and self._foreseen(accepted):
                self._go_on(session)
            else:
                self._wait(session, verifier)

    def _accepted(self) -> int:
        accepted = 0
        while accepted < self._length and self._chance.random() < self._config.acceptance:
            accepted += 1
        return accepted

    def _foreseen(self, accepted: int) -> bool:
        coverage = self._config.assumptions.coverage
        whole = self._config.acceptance if coverage else 0.0
        return self._chance.random() < (whole if accepted == self._length else coverage)

    # A session between two rounds.

    def _go_on(self, session: _Session) -> None:
        """Goes on with what is drafted ahead, as soon as it is there."""
        job = session.job
        assert job is not None
        session.waits = not job.arrived
        if job.arrived:
            job.verifier.ready.append(session)

    def _wait(self, session: _Session, verifier: _Verifier) -> None:
        """Goes on with a draft that is asked for now; without drafts at once."""
        if session.drafter is None:
            verifier.ready.append(session)
            return
        self._ask(session, verifier, ahead=False)
        session.waits = True

    def _ask(self, session: _Session, verifier: _Verifier, *, ahead: bool) -> None:
        if session.drafter is None:
            return
        self._withdraw(session)
        session.waits = False
        fanout = self._config.assumptions.fanout
        rows = fanout * (self._length + 1) if ahead else 1
        session.job = _Job(session, verifier, self._length + ahead, rows)
        self._after(self._half_way_s, self._received, session.drafter, session.job)

    def _withdraw(self, session: _Session) -> None:
        if session.job is not None and session.drafter is not None:
            session.drafter.jobs.pop(session.job, None)
            session.job = None

    def _arrived(self, job: _Job) -> None:
        job.arrived = True
        session = job.session
        if session.job is job and session.waits:
            session.waits = False
            job.verifier.ready.append(session)
            self._advance(job.verifier)

    # A drafter: a token for every job in each step.

    def _received(self, drafter: _Drafter, job: _Job) -> None:
        if job.session.job is job:  # not withdrawn on the way
            drafter.jobs[job] = None
            self._draft_on(drafter)

    def _draft_on(self, drafter: _Drafter) -> None:
        if drafter.busy or not drafter.jobs:
            return
        batch = list(drafter.jobs)
        assert self._draft is not None
        rows = sum(job.rows for job in batch)
        seconds = self._draft.step_s(len(batch), rows, self._config.drafter_context_tokens)
        drafter.busy = True
        drafter.busy_s += seconds
        self._after(seconds, self._drafted, drafter, batch)

    def _drafted(self, drafter: _Drafter, batch: list[_Job]) -> None:
        drafter.busy = False
        for job in batch:
            job.left -= 1
            if not job.left and job in drafter.jobs:  # not withdrawn meanwhile
                del drafter.jobs[job]
                self._after(self._half_way_s, self._arrived, job)
        self._draft_on(drafter)

    # The outcome.

    def _busy_s(self) -> tuple[float, float]:
        return sum(v.busy_s for v in self._verifiers), sum(d.busy_s for d in self._drafters)

    def _played(self) -> Played:
        began_s, *before = self._began
        seconds = self._now - began_s
        busy = [now - old for now, old in zip(self._busy_s(), before, strict=True)]
        decode_s = sum(ended_s - session.first_s for session, ended_s in self._ended)
        tokens = sum(session.tokens - 1 for session, _ in self._ended)
        first_s = sum(session.first_s - session.arrived_s for session, _ in self._ended)
        return Played(
            token_s=decode_s / tokens,
            first_token_s=first_s / len(self._ended),
            verifier_busy=min(busy[0] / seconds / len(self._verifiers), 1.0),
            drafter_busy=busy[1] / seconds / len(self._drafters) if self._drafters else 0.0,
        )


def _sessions(drafter: _Drafter) -> int:
    return drafter.sessions
