"""Placement, fed with what verifiers would measure, comes near the best assignment.

Sessions come and go for a while on fleets drawn at random. Every pair reports the gain it truly
has under its load, give or take some percent, and only once it had a session. No processes and no
clocks: `tests/e2e/fleet` does it with those.
"""

from __future__ import annotations

import random
from collections import Counter
from statistics import fmean

import pytest

from bench.assignment import Drafter, Outcome, Place, Verifier, Workers, outcome, search
from bench.assignment import tokens_per_s as rate
from gateway.candidate import Candidate, Measured
from gateway.placement import place
from tests.unit.gateway.candidates import drafter, verifier

STEPS, SETTLED = 120, 80
NOISE = 0.05


def drawn(source: random.Random) -> Workers:
    """A fleet of three verifiers and four drafters, all different, at different distances."""
    places = [(v, d) for v in range(3) for d in range(4)]
    return Workers(
        verifiers=tuple(
            Verifier(
                step_s=source.choice([0.03, 0.04, 0.06]), session_s=source.choice([4e-3, 8e-3])
            )
            for _ in range(3)
        ),
        drafters=tuple(
            Drafter(
                token_s=source.choice([0.002, 0.004, 0.008, 0.02]),
                acceptance=source.choice([0.5, 0.7, 0.8, 0.9]),
            )
            for _ in range(4)
        ),
        round_trip_s={place: source.choice([0.001, 0.005, 0.02, 0.06]) for place in places},
    )


class World:
    """The fleet, the sessions on it, and what has been measured so far."""

    def __init__(self, workers: Workers, source: random.Random) -> None:
        self._workers, self._source = workers, source
        self._known: dict[Place, tuple[float, int, int]] = {}  # gain, length, rounds
        self._turns = Counter[str]()
        self.running: list[Place] = []

    def measure(self) -> None:
        """Takes a few more rounds of every session."""
        for where, course in self._now().courses.items():
            gain = course.gain * self._source.uniform(1 - NOISE, 1 + NOISE)
            rounds = self._known.get(where, (0, 0, 0))[2] + 10 * self.running.count(where)
            self._known[where] = gain if rounds >= 16 else 0.0, course.length, rounds

    def decide(self) -> None:
        """Places one more session."""
        found = place("draft", self._verifiers(), self._drafters(), turn=self._turn)
        self.running.append((int(found.verifier), int(found.drafters[0])))

    def _turn(self, chosen: str) -> int:
        self._turns[chosen] += 1
        return self._turns[chosen]

    def _now(self) -> Outcome:
        return outcome(self._workers, Counter(self.running))

    def _verifiers(self) -> list[Candidate]:
        found = []
        for number, one in enumerate(self._workers.verifiers):
            running = sum(where[0] == number for where in self.running)
            step_ms = (one.step_s + one.session_s * max(running - 1, 0)) * 1e3
            pairs = {str(d): self._measured((v, d)) for v, d in self._known if v == number}
            load = {"running": running, "step_ms": step_ms, "pairs": pairs}
            found.append(verifier(str(number), **load))
        return found

    def _measured(self, where: Place) -> Measured:
        gain, length, rounds = self._known[where]
        truth = self._workers.drafters[where[1]]
        return Measured(
            sessions=self.running.count(where),
            rounds=rounds,
            drafted_tokens=rounds * length,
            length=length,
            acceptance=truth.acceptance,
            round_trip_ms=self._workers.round_trip_s[where] * 1e3,
            draft_ms=truth.token_s * 1e3,
            gain=gain,
        )

    def _drafters(self) -> list[Candidate]:
        busy = self._now().busy
        return [
            drafter(
                str(number),
                step_ms=one.token_s * 1e3,
                running=sum(where[1] == number for where in self.running),
                busy=busy.get(number, 0.0),
            )
            for number, one in enumerate(self._workers.drafters)
        ]


def converged(seed: int) -> float:
    """Rate in the end, over that of the best assignment."""
    source = random.Random(seed)
    workers, sessions = drawn(source), source.choice([6, 9, 12])
    world, rates = World(workers, source), []
    for turn in range(STEPS):
        if len(world.running) == sessions:
            del world.running[source.randrange(sessions)]
        world.decide()
        world.measure()
        if turn >= SETTLED:
            rates.append(rate(workers, Counter(world.running)))
    return fmean(rates) / rate(workers, search(workers, sessions))


@pytest.fixture(scope="module")
def ratios() -> list[float]:
    return [converged(seed) for seed in range(5)]


def test_on_average_it_is_within_ten_percent_of_the_best(ratios: list[float]) -> None:
    assert fmean(ratios) >= 0.9


def test_no_fleet_is_far_off(ratios: list[float]) -> None:
    assert min(ratios) >= 0.8
