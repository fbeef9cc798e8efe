"""A worker's reports in the gateway's terms: what two of them say together.

Reports carry totals and moving averages. How busy a worker is, how long its drafts are now and
for how long a pair has been quiet only show between reports. What cannot be is taken for unknown:
one worker's figures decide about others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import Message
from paceline.v1 import worker_pb2

from common.rate_model import acceptance_of
from gateway.candidate import Load, Measured

_SMOOTHING_S = 2.0
"""Time in which the share of busy time forgets most of what it was."""

_RECENT_ROUNDS = 16
"""Rounds that tell the length of recent drafts; acceptance is averaged over about as many."""

_MOST_FIGURE = 1e9
"""Of milliseconds and gains: above all that are measured."""

_SHARES = frozenset({"batch_occupancy", "acceptance"})
_MOST_SHARE = 1.001
"""A share of all, and what rounding adds."""

_MOST_LENGTH = 256.0
"""Of drafts, in tokens: far above what helps."""


@dataclass
class _Trail:
    """Of one pair: what was last told, and when there was news."""

    rounds: int = 0
    drafted_tokens: int = 0
    gain: float = 0.0
    length: float = 0.0  # of recent drafts, in tokens
    acceptance: float = 0.0  # of a token of these
    grown_at: float = 0.0


class Reports:
    """Follows one worker.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps = 0
        self._at: float | None = None
        self._busy: float | None = None
        self._trails: dict[str, _Trail] = {}

    def take(self, status: worker_pb2.WatchStatusResponse) -> Load:
        """Returns the load that a report tells; clears figures in it that cannot be."""
        for message in (status, *status.pairs):
            _clear_unsound(message)
        now = self._clock()
        self._busy = self._busy_share(status, now)
        self._at, self._steps = now, status.steps
        measured = {pair.drafter: self._measured(pair, now) for pair in status.pairs}
        self._trails = {address: self._trails[address] for address in measured}
        return Load(
            accepting=status.accepting,
            running=status.running,
            waiting=status.waiting,
            step_ms=status.step_ms,
            queue_wait_ms=status.queue_wait_ms,
            batch_occupancy=status.batch_occupancy,
            plain_step_ms=status.plain_step_ms,
            busy=self._busy,
            pairs=measured,
        )

    def _busy_share(self, status: worker_pb2.WatchStatusResponse, now: float) -> float | None:
        """Steps since the last report times their duration; a restart begins anew."""
        steps = status.steps - self._steps
        if self._at is None or steps < 0 or now <= self._at:
            return None if self._at is None or steps < 0 else self._busy
        share = min(steps * status.step_ms / 1e3 / (now - self._at), 1.0)
        if self._busy is None:
            return share
        weight = min((now - self._at) / _SMOOTHING_S, 1.0)
        return self._busy + weight * (share - self._busy)

    def _measured(self, pair: worker_pb2.PairStatus, now: float) -> Measured:
        trail = self._trails.setdefault(pair.drafter, _Trail(grown_at=now))
        if pair.rounds < trail.rounds:  # another process, or a stream of its own
            trail = self._trails[pair.drafter] = _Trail(grown_at=now)
        if pair.gain != trail.gain:  # drafts that never come in time are news, too
            trail.gain, trail.grown_at = pair.gain, now
        if pair.rounds > trail.rounds:  # of most pairs there is no news, and this takes a while
            rounds = pair.rounds - trail.rounds
            drafted = pair.drafted_tokens - trail.drafted_tokens
            length = min(max(drafted / rounds, 0.0), _MOST_LENGTH)
            weight = min(rounds / _RECENT_ROUNDS, 1.0) if trail.rounds else 1.0
            trail.length += weight * (length - trail.length)
            trail.acceptance = acceptance_of(pair.acceptance, trail.length) if trail.length else 0.0
            trail.rounds, trail.drafted_tokens = pair.rounds, pair.drafted_tokens
            trail.grown_at = now
        return Measured(
            sessions=pair.sessions,
            rounds=pair.rounds,
            drafted_tokens=pair.drafted_tokens,
            length=trail.length,
            acceptance=trail.acceptance,
            round_trip_ms=pair.round_trip_ms,
            draft_ms=pair.draft_ms,
            gain=pair.gain,
            quiet_s=now - trail.grown_at,
        )


def _clear_unsound(message: Message) -> None:
    for field, value in message.ListFields():
        most = _MOST_SHARE if field.name in _SHARES else _MOST_FIGURE
        if field.type == field.TYPE_DOUBLE and not 0 <= value <= most:
            message.ClearField(field.name)
