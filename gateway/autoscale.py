"""How many workers each pool should have: pure functions, and the smoothing over time.

Verifiers follow their load. A pool needs as many as keep them at a target share of what their
steps take, and more where sequences wait for admission.

Drafters follow the verifiers, by the rate model. A session with drafts of γ tokens, made in t_d
each, keeps a drafter busy for (γ + 1) t_d in each of its rounds; acceptance, round trip and the
verifier's step decide γ and the rounds in a second. So the ratio of drafters to verifiers follows
acceptance and draft time. Drafters that serve several sessions in one pass are busy for less than
the sum, which their own reports show.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gateway.candidate import Candidate
from gateway.gain import Gains, fitting
from gateway.remembered import Remembered

Key = tuple[str, str]
"""Tier and pool."""

VERIFIER_USE = 0.7
"""Share of their steps that verifiers are meant to use."""

DRAFTER_USE = 0.8
"""Share of their time that drafters are meant to use."""

QUEUE_WAIT_MS = 250.0
"""Wait for admission above which a pool is too small, however little its steps seem to use."""

_MOST_GROWTH = 2.0
_UP_S, _DOWN_S = 10.0, 60.0
_TOLERANCE = 0.1
_LEAST_BATCHING = 0.02


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Workers that are scaled together.

    Attributes:
        tier: "verifier" or "drafter".
        pool: Its name.
        ready: Workers that take requests.
        desired: Replicas it should have for the present load.
    """

    tier: str
    pool: str
    ready: int
    desired: int


def needs(verifiers: Sequence[Candidate], drafters: Sequence[Candidate]) -> dict[Key, float | None]:
    """Returns how many workers each pool needs now, as fractions; None where nobody can say.

    Args:
        verifiers: All verifiers ever reached.
        drafters: All drafters ever reached.
    """
    found: dict[Key, float | None] = {}
    for name, members in _pools(verifiers).items():
        ready = [each for each in members if each.available]
        found["verifier", name] = _verifiers_needed(ready) if ready else None
    for name, members in _pools(drafters).items():
        ready = [each for each in members if each.available]
        found["drafter", name] = _drafters_needed(ready, verifiers, drafters) if ready else None
    return found


class Autoscaler:
    """Smooths what pools need, so that noise moves nothing. Growth is taken up sooner than decline.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: float | None = None
        self._remembered: Remembered[Key] = Remembered(clock)
        self._smooth: dict[Key, float] = {}
        self._desired: dict[Key, int] = {}

    def pools(self, verifiers: Sequence[Candidate], drafters: Sequence[Candidate]) -> list[Pool]:
        """Returns all pools, by tier (verifiers first), then name; may be asked at any time.

        A pool of which no worker is listed any more is there for another hour: those that are not
        ready may be unlisted, and what they were needed for is still to be done.
        """
        now = self._clock()
        elapsed_s = 0.0 if self._at is None else now - self._at
        self._at = now
        listed = needs(verifiers, drafters)
        self._remembered.add(listed)
        found = dict.fromkeys(self._remembered.recent) | listed
        self._smooth = {key: self._smoothed(key, need, elapsed_s) for key, need in found.items()}
        ready = dict.fromkeys(found, 0)
        ready |= _ready("verifier", verifiers) | _ready("drafter", drafters)
        self._desired = {key: self._whole(key, ready[key]) for key in found}
        return [
            Pool(tier=key[0], pool=key[1], ready=ready[key], desired=self._desired[key])
            for key in sorted(found, key=lambda key: (key[0] == "drafter", key[1]))
        ]

    def _smoothed(self, key: Key, need: float | None, elapsed_s: float) -> float:
        before = self._smooth.get(key)
        if need is None or not math.isfinite(need):  # unknown: what was needed is needed still
            return 1.0 if before is None else before
        if before is None:
            return need
        weight = 1 - math.exp(-elapsed_s / (_UP_S if need > before else _DOWN_S))
        return before + weight * (need - before)

    def _whole(self, key: Key, ready: int) -> int:
        """Stays where it is while that is right within the tolerance, either way."""
        need, before = self._smooth[key], self._desired.get(key, 0)
        least = math.ceil(need / (1 + _TOLERANCE))
        desired = min(max(before, least), math.ceil(need / (1 - _TOLERANCE)))
        most = max(math.ceil(_MOST_GROWTH * ready), before, 1)
        return min(max(desired, 1), most)


def _verifiers_needed(ready: Sequence[Candidate]) -> float:
    """As many as bring use and wait down to their targets."""
    use = fmean(_verifier_use(each) for each in ready) / VERIFIER_USE
    waits = [each.load.queue_wait_ms for each in ready if each.load is not None]
    pressure = min(fmean(waits) / QUEUE_WAIT_MS, _MOST_GROWTH)
    return len(ready) * max(use, pressure if pressure > 1 else 0.0)


def _verifier_use(verifier: Candidate) -> float:
    """Share of its steps that its sequences would take, those that wait included."""
    load = verifier.load
    assert load is not None
    if not load.running:
        return 1.0 if load.waiting else load.batch_occupancy
    return load.batch_occupancy * (load.running + load.waiting) / load.running


def _drafters_needed(
    ready: Sequence[Candidate], verifiers: Sequence[Candidate], drafters: Sequence[Candidate]
) -> float:
    """Drafting time that a pool's part of all sessions takes, over what a drafter has to give."""
    work = modelled = 0.0
    members = {each.address for each in ready}
    for model in {each.description.model for each in verifiers}:
        served = [v for v in verifiers if v.description.model == model and v.load is not None]
        gains = Gains(served, drafters)
        for verifier in served:
            able = fitting(verifier, drafters)
            mine = [each for each in able if each.address in members]
            if not mine:
                continue
            part = len(mine) / len(able)
            share = fmean(gains.share(verifier, drafter) for drafter in mine)
            work += _drafting_sessions(verifier) * part * share
            modelled += share * _mirrored(verifier, {each.address for each in mine})
    return work * _batching(ready, modelled) / DRAFTER_USE


def _drafting_sessions(verifier: Candidate) -> float:
    """Sessions that drafters mirror, and of those that wait the same part."""
    load = verifier.load
    assert load is not None
    mirrored = sum(pair.sessions for pair in load.pairs.values())
    return mirrored * (1 + load.waiting / load.running) if load.running else float(mirrored)


def _mirrored(verifier: Candidate, drafters: Collection[str]) -> int:
    assert verifier.load is not None
    return sum(pair.sessions for at, pair in verifier.load.pairs.items() if at in drafters)


def _batching(ready: Sequence[Candidate], modelled: float) -> float:
    """What drafters are busy for, over the sum of what their sessions take one by one.

    Drafters that are busy all the time say nothing: more might be asked of them.
    """
    busy = [each.load.busy for each in ready if each.load is not None]
    known = [share for share in busy if share is not None]
    if len(known) < len(busy) or modelled <= 0 or sum(known) > DRAFTER_USE * len(known):
        return 1.0
    return min(max(sum(known) / modelled, _LEAST_BATCHING), 1.0)


def _pools(workers: Sequence[Candidate]) -> Mapping[str, list[Candidate]]:
    found: dict[str, list[Candidate]] = defaultdict(list)
    for worker in workers:
        found[worker.description.pool].append(worker)
    return found


def _ready(tier: str, workers: Sequence[Candidate]) -> dict[Key, int]:
    return {
        (tier, name): sum(each.available for each in members)
        for name, members in _pools(workers).items()
    }
