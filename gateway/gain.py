"""What a drafter is worth to a verifier: measured where they work together, else predicted.

The gain of a pair is the tokens its sessions get in a second over what plain steps would give
them. Verifiers measure it. For a pair that has hardly worked together yet the rate model says what
to expect, as far as its parts are known: the verifier's step, the drafter's time for a token, the
way between them, and how often drafts of this model are right.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean, median

from common.drafters import misfit
from common.rate_model import Pair
from gateway.candidate import Candidate, Measured

PRIOR_ACCEPTANCE = 0.7
"""Assumed while no pair of the same models has been measured."""

PRIOR_GAIN = 1.5
"""Assumed while the step of the verifier or of the drafter is unknown."""

REPROBE_S = 30.0
"""Time in which what was measured comes to count half, while nothing new is."""

_PREDICTION_ROUNDS = 32
"""Rounds that a prediction counts as much as: few are led astray by how they begin."""

_MOST_ROUNDS = 256
_SILENT_ROUNDS = 96
"""Rounds that are behind the gain of a drafter whose drafts never come in time."""

_NOTHING = Measured()
_CROWD = 2
_PRIOR_CROWDING = 0.5
"""How much sessions of a drafter with time for one take from each other, while unknown."""
_BY_TIME = 0.25
"""How much the time that a drafter has left counts in what one more session brings."""
_LEAST_EXCESS = 0.01
_LEAST_STEP_MS = 1e-3
"""No step is shorter: less is a clock that did not move, and as good as unknown."""
_LEAST_CALIBRATION = 0.2
_LEAST_SHARE = 1e-3
_LEAST_EVIDENCE_TOKENS = 32
_LEAST_DRAFTS = 16
_LEAST_OF_BEST = 0.1
"""A drafter that brings less than this part of what the best brings is left out."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """One drafter, to one verifier.

    Attributes:
        drafter: The drafter.
        gain: To be expected.
        measured: Whether that rests on measurement.
        stale: Whether that was a while ago.
        used: Whether sessions of the verifier are on it now.
        capacity: Sessions the drafter has time for.
        crowding: How much its sessions take from each other, from 0 to 1: nothing, or all.
        seen: Sessions it had when that gain was measured; 1 where it is predicted.
    """

    drafter: Candidate
    gain: float
    measured: bool
    stale: bool
    used: bool
    capacity: float
    crowding: float
    seen: int

    @property
    def marginal(self) -> float:
        """What one more session brings, less what the drafter's others lose by it.

        Two views of it: a quarter by the drafter's time, which it has or has not left; the rest by
        how gains fell so far, n sessions bringing n^(1 - crowding) times what one does.
        """
        sessions = self.drafter.sessions
        left = min(max(self.capacity - sessions, 0.0), 1.0)
        if not sessions:
            return (self.gain - 1) * left
        fallen = math.pow(min(self.seen, sessions) / (sessions + 1), self.crowding)
        by_fall = (1 - self.crowding) * fallen
        return (self.gain - 1) * (_BY_TIME * left + (1 - _BY_TIME) * by_fall)

    @property
    def shared(self) -> float:
        """What each session gains once there is one more, the drafter's time being shared."""
        return (self.gain - 1) * min(self.capacity / (self.drafter.sessions + 1), 1.0)


class Gains:
    """All that verifiers of one model have measured, to judge pairs by.

    Args:
        verifiers: The model's verifiers; those that are lost tell nothing.
        drafters: All drafters.
    """

    def __init__(self, verifiers: Sequence[Candidate], drafters: Sequence[Candidate]) -> None:
        self._models = {each.address: each.description.model for each in drafters}
        self._of: dict[str, list[tuple[Candidate, Measured]]] = defaultdict(list)
        for verifier in verifiers:
            if verifier.load is not None:
                for address, measured in verifier.load.pairs.items():
                    self._of[address].append((verifier, measured))
        self._known: dict[str, _Known] = {}
        self._fallen: dict[str, float | None] = {}

    def worths(self, verifier: Candidate, drafters: Sequence[Candidate]) -> list[Worth]:
        """Judges drafters that fit an available verifier.

        What is measured counts by its rounds, and less the longer ago it was; the rest is
        prediction, scaled by how far this verifier's well-known pairs fall short of theirs.
        """
        assert verifier.load is not None
        found = [verifier.load.pairs.get(each.address, _NOTHING) for each in drafters]
        forecasts = [self._predict(verifier, drafter) for drafter in drafters]
        scale = _calibration(found, forecasts)
        shares = [
            max(_share(drafter, forecast.share), _LEAST_SHARE)
            for drafter, forecast in zip(drafters, forecasts, strict=True)
        ]
        return [
            Worth(
                drafter=drafter,
                gain=_expected(measured, 1 + scale * (forecast.gain - 1)),
                measured=measured.gain > 0,
                stale=measured.quiet_s >= REPROBE_S,
                used=measured.sessions > 0,
                capacity=1 / share,
                crowding=self._crowding(drafter, min(_PRIOR_CROWDING * share, 1.0)),
                seen=_reported(drafter) if measured.gain else 1,
            )
            for drafter, measured, forecast, share in zip(
                drafters, found, forecasts, shares, strict=True
            )
        ]

    def model(self, verifier: Candidate, drafter: Candidate) -> Pair | None:
        """Returns the rate model of a pair; None while one of their steps is unknown."""
        assert verifier.load is not None
        known, step_ms = self._of_all(drafter), verifier.load.plain_step_ms
        if min(step_ms, known.token_ms) < _LEAST_STEP_MS:
            return None
        found = verifier.load.pairs.get(drafter.address, _NOTHING)
        way_ms = _way_ms(found, known.token_ms) if found.rounds else known.way_ms
        return Pair(
            step_s=_coarse(step_ms / 1e3),
            token_s=_coarse(known.token_ms / 1e3),
            round_trip_s=_coarse(way_ms / 1e3),
            acceptance=_coarse(self._acceptance(found, drafter)),
        )

    def share(self, verifier: Candidate, drafter: Candidate) -> float:
        """Share of a drafter's time that a session of a verifier takes, by the rate model."""
        return self._predict(verifier, drafter).share

    def _crowding(self, drafter: Candidate, prior: float) -> float:
        """How much a drafter's sessions take from each other, as far as that is measured."""
        if drafter.address not in self._fallen:
            self._fallen[drafter.address] = self._fall(drafter)
        fallen = self._fallen[drafter.address]
        return prior if fallen is None else fallen

    def _fall(self, drafter: Candidate) -> float | None:
        """How far a drafter's gains have fallen below what one session alone would have.

        None where it has too few sessions to tell.
        """
        sessions = _reported(drafter)
        if sessions < _CROWD:
            return None
        total, behind = 0.0, 0
        for verifier, found in self._of[drafter.address]:
            if found.gain and found.sessions:
                alone = max(self._predict(verifier, drafter).gain - 1, _LEAST_EXCESS)
                lost = math.log(alone / max(found.gain - 1, _LEAST_EXCESS))
                slope = min(max(lost / math.log(sessions), 0.0), 1.0)
                total += slope * found.sessions
                behind += found.sessions
        return total / behind if behind else None

    def _of_all(self, drafter: Candidate) -> _Known:
        """What all verifiers together say of a drafter."""
        if drafter.address not in self._known:
            assert drafter.load is not None
            found = [each for _, each in self._of[drafter.address] if each.rounds]
            token_ms = drafter.load.step_ms or _median([each.draft_ms for each in found])
            way_ms = _median([_way_ms(each, token_ms) for each in found])
            self._known[drafter.address] = _Known(token_ms, way_ms)
        return self._known[drafter.address]

    def _predict(self, verifier: Candidate, drafter: Candidate) -> _Forecast:
        pair = self.model(verifier, drafter)
        return _Forecast(PRIOR_GAIN, 0.0) if pair is None else _forecast(pair)

    def _acceptance(self, found: Measured, drafter: Candidate) -> float:
        """The pair's own, else that of the same models elsewhere."""
        if found.drafted_tokens >= _LEAST_EVIDENCE_TOKENS:
            return found.acceptance
        return self._acceptances.get(drafter.description.model, PRIOR_ACCEPTANCE)

    @cached_property
    def _acceptances(self) -> dict[str, float]:
        """Mean acceptance by the drafters' model."""
        known: dict[str, list[float]] = defaultdict(list)
        for address, name in self._models.items():
            known[name] += [
                each.acceptance
                for _, each in self._of[address]
                if each.drafted_tokens >= _LEAST_EVIDENCE_TOKENS
            ]
        return {name: fmean(values) for name, values in known.items() if values}


def _reported(drafter: Candidate) -> int:
    """Sessions behind what is measured now."""
    assert drafter.load is not None
    return max(drafter.load.running, 1)


def fitting(verifier: Candidate, drafters: Sequence[Candidate]) -> list[Candidate]:
    """Returns the drafters that can be given sessions of a verifier."""
    return [
        drafter
        for drafter in drafters
        if drafter.available and misfit(verifier.description, drafter.description) is None
    ]


def ranked(worths: Sequence[Worth]) -> list[Worth]:
    """Orders a verifier's drafters, best first; those that do not help are left out.

    Left out are those measured to bring less than a tenth of what the best brings: where drafts
    pay at all, a loss is always less. First come those that bring most to one more session.
    """
    best = max((worth.gain for worth in worths if worth.measured), default=1.0)
    least = 1 + _LEAST_OF_BEST * max(best - 1, 0.0)
    kept = [worth for worth in worths if not worth.measured or worth.gain >= least]
    return sorted(
        kept,
        key=lambda worth: (
            -worth.marginal,
            -worth.shared,
            worth.drafter.sessions,
            worth.drafter.address,
        ),
    )


def untried(worths: Sequence[Worth]) -> list[Worth]:
    """Returns drafters that were never measured with the verifier, and are not at this moment."""
    return [worth for worth in worths if not worth.measured and not worth.used]


def forgotten(worths: Sequence[Worth], kept: Sequence[Worth]) -> list[Worth]:
    """Returns drafters that were left out and have been quiet for a while."""
    return [
        worth
        for worth in worths
        if worth.measured and worth.stale and all(worth is not each for each in kept)
    ]


def _way_ms(measured: Measured, token_ms: float) -> float:
    """What an answer takes less its drafting, by the drafter's own time for a token.

    Verifiers can tell the two apart only as far as they ask for drafts of different lengths.
    """
    answer_ms = measured.round_trip_ms + measured.length * measured.draft_ms
    return max(answer_ms - measured.length * token_ms, 0.0)


@dataclass(frozen=True)
class _Known:
    token_ms: float
    way_ms: float


@dataclass(frozen=True)
class _Forecast:
    gain: float
    share: float  # of the drafter's time that one session takes


@lru_cache(maxsize=4096)
def _forecast(pair: Pair) -> _Forecast:
    return _Forecast(pair.gain(), pair.drafter_share(pair.best_length()))


def _weight(measured: Measured) -> float:
    """Rounds that what is measured counts as."""
    if not measured.gain:
        return 0.0
    rounds = measured.rounds if measured.rounds >= _LEAST_DRAFTS else _SILENT_ROUNDS
    return min(rounds, _MOST_ROUNDS) * math.pow(0.5, measured.quiet_s / REPROBE_S)


def _expected(measured: Measured, predicted: float) -> float:
    weight = _weight(measured)
    total = weight * measured.gain + _PREDICTION_ROUNDS * predicted
    return total / (weight + _PREDICTION_ROUNDS)


def _calibration(found: Sequence[Measured], forecasts: Sequence[_Forecast]) -> float:
    """What well-known pairs gain over what is predicted for them; at most all of it."""
    got = due = 0.0
    for measured, forecast in zip(found, forecasts, strict=True):
        if _weight(measured) >= 2 * _PREDICTION_ROUNDS:
            got += max(measured.gain - 1, 0.0)
            due += forecast.gain - 1
    return min(max(got / due, _LEAST_CALIBRATION), 1.0) if due > 0 else 1.0


def _share(drafter: Candidate, modelled: float) -> float:
    """Share of a drafter's time that one session takes.

    Sessions share its passes, so what is measured may be less than what the model says. Where
    neither is known it is taken for all of it: a burst is not to go to who has just joined.
    """
    assert drafter.load is not None
    if drafter.load.busy is None or not drafter.load.running:
        return modelled or 1.0
    measured = drafter.load.busy / drafter.load.running
    return min(modelled, measured) if modelled else measured


@lru_cache(maxsize=4096)
def _coarse(value: float) -> float:
    """Two digits are as much as is known of a measure; and what was forecast is found again."""
    return float(f"{value:.2g}")


def _median(values: Sequence[float]) -> float:
    """The median of those that are known."""
    known = [value for value in values if value > 0]
    return median(known) if known else 0.0
