"""How a fleet on paper does under its load: the rate model of one pair, and who waits for whom.

`common.rate_model` says how long a round of one session takes with nobody in its way. In a fleet

- as many sessions run as come in while one lasts (Little's law), so the batch is a fixed point: a
  larger one makes steps longer, and longer steps make it larger;
- a session whose draft comes while its verifier is busy with others waits for the end of that
  step, and a job at a drafter for the end of the step that is under way there;
- prefills take their share of the verifiers' time from everybody;
- the drafters' memory holds the end of every session's text, or the fleet will not do.

Sessions are taken to be where they are independently of each other. `fleet.simulation` plays the
same fleet without that liberty; the tests say how near the two are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from common.rate_model import Pair, ahead_share, committed_tokens
from fleet.costs import Machine
from fleet.layout import Layout
from fleet.workload import PlanConfig

_ITERATIONS = 50
_NEAR = 1e-3
_PIECES = 9  # of an interval that is averaged over


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What to expect of a fleet, on average."""

    token_s: float
    """Seconds of an output token after the first."""
    first_token_s: float
    """Seconds to the first token."""
    sessions: float
    """Sessions between first and last token, in the whole fleet."""
    load: float
    """Share of the verifiers' time that the traffic takes where their batches are full."""
    drafter_busy: float
    """Share of the drafters' time in steps; 0 without drafters."""


def estimate(layout: Layout, config: PlanConfig) -> Estimate | None:
    """Returns what to expect, or None where the fleet cannot carry the traffic.

    Args:
        layout: The fleet.
        config: Models, traffic and costs.
    """
    target, draft = layout.target(config), layout.draft(config)
    most = target.most_sequences(config.traffic.context_tokens)
    mirrored = math.inf
    if draft is not None:
        mirrored = layout.drafters * draft.held_sequences(config.drafter_context_tokens)
    if most < 1 or mirrored < 1:
        return None
    expected = _Steady(layout, config, target, draft).solve(layout.verifiers * most)
    return expected if expected is not None and expected.sessions <= mirrored else None


@dataclass(frozen=True, kw_only=True)
class _Round:
    """A mean round of one session among others."""

    seconds: float
    step_s: float  # of its verifier
    first_wait_s: float = 0.0  # for the session's first draft
    stepping: float  # share of time that its verifier is in a step
    drafting: float = 0.0  # share of time that its drafter is in one


@dataclass(frozen=True, kw_only=True)
class _Sharing:
    """What one session's round makes of the batches that it is part of; a fixed point."""

    batch: float  # sessions in a verifier's step
    drafting: float  # share of time that one session has a job at its drafter
    rows: float  # of such a job

    def halfway(self, other: _Sharing) -> _Sharing:
        return _Sharing(
            batch=(self.batch + other.batch) / 2,
            drafting=(self.drafting + other.drafting) / 2,
            rows=(self.rows + other.rows) / 2,
        )

    def near(self, other: _Sharing) -> bool:
        return abs(self.batch - other.batch) < _NEAR * self.batch and (
            abs(self.drafting - other.drafting) < _NEAR
        )


class _Steady:
    """A fleet whose load does not change."""

    def __init__(
        self, layout: Layout, config: PlanConfig, target: Machine, draft: Machine | None
    ) -> None:
        self._layout, self._config = layout, config
        self._target, self._draft = target, draft
        self._length = layout.draft_tokens
        self._context = config.traffic.context_tokens
        self._requests_per_s = config.traffic.requests_per_s / layout.verifiers  # at each
        self._prefill_s = target.prefill_s(config.traffic.prompt_tokens)
        self._prefilling = self._requests_per_s * self._prefill_s  # share of time
        self._ahead = (
            ahead_share(config.acceptance, self._length, config.assumptions.coverage)
            if self._length
            else 0.0
        )
        self._sharing = _Sharing(batch=1.0, drafting=0.5, rows=1.0)  # the last one found

    def solve(self, most: int) -> Estimate | None:
        """Returns what to expect where at most so many sessions run."""
        if self._prefilling >= 1:
            return None
        traffic = self._config.traffic
        tokens_per_s = traffic.requests_per_s * (traffic.output_tokens - 1)
        decoding = tokens_per_s * self._token_s(self._round(most)) / most
        if decoding >= 1:
            return None
        sessions = 0.0
        for _ in range(_ITERATIONS):
            before, round_ = sessions, self._round(sessions)
            sessions = min(tokens_per_s * self._token_s(round_), most)
            if abs(sessions - before) <= _NEAR * max(sessions, 1.0):
                break
        return Estimate(
            token_s=self._token_s(round_),
            first_token_s=self._first_token_s(round_),
            sessions=sessions,
            load=self._prefilling + (1 - self._prefilling) * decoding,
            drafter_busy=round_.drafting,
        )

    def _token_s(self, round_: _Round) -> float:
        """Seconds a token, with what the last round writes too much and the first draft's wait."""
        tokens = self._config.traffic.output_tokens - 1
        acceptance, length = self._config.acceptance, self._length
        rounds = (tokens + _overshoot(acceptance, length)) / committed_tokens(acceptance, length)
        return (rounds * round_.seconds + round_.first_wait_s) / tokens

    def _first_token_s(self, round_: _Round) -> float:
        # The Pollaczek-Khinchine mean wait, for prefills between which steps are taken.
        turn_s = self._prefill_s + round_.stepping * round_.step_s
        rest_s = (self._prefilling * self._prefill_s + round_.stepping * round_.step_s) / 2
        return self._prefill_s + rest_s / (1 - min(self._requests_per_s * turn_s, 0.99))

    def _round(self, sessions: float) -> _Round:
        """Returns the round that one session sees, with so many others in the fleet."""
        here = max((sessions + 1) / self._layout.verifiers, 1.0)
        if self._draft is None or not self._length:
            step_s = self._target.step_s(here, here, self._context)
            return _Round(
                seconds=step_s / (1 - self._prefilling),
                step_s=step_s,
                stepping=1 - self._prefilling,
            )
        at_drafter = max((sessions + 1) / self._layout.drafters, 1.0)
        for _ in range(_ITERATIONS):
            round_, found = self._drafted(self._draft, here, at_drafter)
            if found.near(self._sharing):
                break
            self._sharing = self._sharing.halfway(found)
        return round_

    def _drafted(self, draft: Machine, here: float, at_drafter: float) -> tuple[_Round, _Sharing]:
        """Returns a round under the present sharing, and the sharing that follows from it.

        Args:
            draft: The draft model on its GPU.
            here: Sessions on the session's verifier, itself included.
            at_drafter: Sessions on its drafter, itself included.
        """
        sharing, length = self._sharing, self._length
        jobs = 1 + (at_drafter - 1) * sharing.drafting
        held = self._config.drafter_context_tokens
        token_s = draft.step_s(jobs, jobs * sharing.rows, held)
        # A job that meets somebody else's step waits for half of it, on average.
        meets_s = token_s * (1 - (1 - sharing.drafting) ** (at_drafter - 1))
        rows = sharing.batch * (length + 1)
        pair = Pair(
            step_s=self._target.step_s(sharing.batch, rows, self._context),
            token_s=token_s,
            round_trip_s=self._config.round_trip_ms / 1e3 + meets_s / 2,
            acceptance=self._config.acceptance,
            coverage=self._config.assumptions.coverage,
        )
        seconds = self._round_s(pair, here, meets_s)
        step_share = pair.step_s / seconds
        stepping = 1 - (1 - step_share) ** here
        drafting, rows = self._drafting(pair, seconds)
        round_ = _Round(
            seconds=seconds,
            step_s=pair.step_s,
            first_wait_s=pair.round_trip_s + length * token_s,
            stepping=stepping,
            drafting=1 - (1 - drafting) ** at_drafter,
        )
        return round_, _Sharing(batch=here * step_share / stepping, drafting=drafting, rows=rows)

    def _round_s(self, pair: Pair, here: float, meets_s: float) -> float:
        """Returns the round of a pair among the sessions on its verifier."""
        length, ahead = self._length, self._ahead
        alone_s = pair.round_s(length)
        late_s = pair.round_trip_s + (length + 1) * pair.token_s - pair.step_s  # drafted ahead
        asked_s = pair.round_trip_s + length * pair.token_s
        away_s = ahead * max(late_s, 0.0) + (1 - ahead) * asked_s
        crossed: float = 1 - (1 - pair.step_s / alone_s) ** (here - 1)
        gap_s = ahead * _gap_s(late_s, pair.step_s, meets_s)
        gap_s += (1 - ahead) * _gap_s(asked_s, pair.step_s, meets_s)
        # Prefills stretch what happens at the verifier, not what happens elsewhere meanwhile.
        return away_s + (alone_s - away_s + crossed * gap_s) / (1 - self._prefilling)

    def _drafting(self, pair: Pair, round_s: float) -> tuple[float, float]:
        """Returns the share of a round with a job at the drafter, and such a job's mean rows."""
        length, ahead = self._length, self._ahead
        wide_s = (length + 1) * pair.token_s
        ahead_s = ahead * wide_s + (1 - ahead) * min(wide_s, pair.step_s)
        asked_s = (1 - ahead) * length * pair.token_s
        wide_rows = self._config.assumptions.fanout * (length + 1)
        rows = (ahead_s * wide_rows + asked_s) / (ahead_s + asked_s)
        return min((ahead_s + asked_s) / round_s, 1.0), rows


def _gap_s(late_s: float, step_s: float, spread_s: float) -> float:
    """Returns how long a draft waits for the next step, where steps follow each other.

    Args:
        late_s: From the end of a step to the draft; negative where it comes before.
        step_s: A step.
        spread_s: Width of the interval around `late_s` in which the draft comes.
    """
    gaps_s = 0.0
    for piece in range(_PIECES):
        late = late_s + spread_s * ((piece + 0.5) / _PIECES - 0.5)
        if late > 0:
            gaps_s += math.ceil(late / step_s) * step_s - late
    return gaps_s / _PIECES


def _overshoot(acceptance: float, length: int) -> float:
    """Returns the tokens that the last round of an output commits beyond its end, on average.

    The excess of a renewal process over a far boundary: (E[n^2] / E[n] - 1) / 2.
    """
    right: list[float] = [acceptance**depth for depth in range(length + 1)]
    squares = sum((2 * depth + 1) * chance for depth, chance in enumerate(right))
    return (squares / sum(right) - 1) / 2
