"""What is expected of a fleet: against cases that can be done by hand, and against a simulation.

The simulation knows nothing of the estimate's formulas: it plays requests, steps and drafts one by
one. Random fleets are drawn with a fixed seed, so that the figures below never change by chance.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from statistics import median

import pytest

from common.rate_model import Pair, committed_tokens
from fleet.estimate import Estimate, estimate
from fleet.gpus import GPUS
from fleet.layout import Layout
from fleet.simulation import Played, play
from fleet.workload import Assumptions, ModelSize, PlanConfig, Traffic

PLAIN = Layout(verifier=GPUS["H100"], verifiers=1)
PAIRED = replace(PLAIN, drafter=GPUS["A10"], drafters=1, draft_tokens=4)
QUIET = PlanConfig(traffic=Traffic(requests_per_s=1e-4, prompt_tokens=100, output_tokens=400))

TOLERANCE = 0.20
"""Largest relative error of the time of an output token, over all fleets."""
MEDIAN_TOLERANCE = 0.05
FLEETS = 24


def expected(layout: Layout, config: PlanConfig) -> Estimate:
    found = estimate(layout, config)
    assert found is not None
    return found


def test_a_lone_session_takes_a_step_for_each_token() -> None:
    step_s = PLAIN.target(QUIET).step_s(1, 1, QUIET.traffic.context_tokens)
    assert expected(PLAIN, QUIET).token_s == pytest.approx(step_s, rel=1e-3)
    assert expected(PLAIN, QUIET).load < 0.001


@pytest.mark.parametrize(
    ("prompt_tokens", "looks_back", "held"),
    [
        (100, 0, 100 + 400 * 13 / 24),
        (100, 1024, 100 + 400 * 13 / 24),
        (30_000, 1024, 1024),
        (30_000, 0, 30_000 + 400 * 13 / 24),
    ],
)
def test_a_lone_pair_is_the_rate_models(prompt_tokens: int, looks_back: int, held: float) -> None:
    """Whose drafter may hold the end of a long text alone."""
    config = replace(
        QUIET,
        traffic=replace(QUIET.traffic, prompt_tokens=prompt_tokens),
        assumptions=Assumptions(drafter_context_tokens=looks_back),
    )
    draft = PAIRED.draft(config)
    assert draft is not None
    pair = Pair(
        step_s=PAIRED.target(config).step_s(1, 5, config.traffic.context_tokens),
        token_s=draft.step_s(1, 1, held),
        round_trip_s=config.round_trip_ms / 1e3,
        acceptance=config.acceptance,
    )
    alone = pair.round_s(4) / committed_tokens(config.acceptance, 4)
    assert expected(PAIRED, config).token_s == pytest.approx(alone, rel=0.02)


def test_what_cannot_be_carried_is_no_estimate() -> None:
    flood = replace(QUIET, traffic=Traffic(requests_per_s=500))
    assert estimate(PLAIN, flood) is None
    prompts = replace(QUIET, traffic=Traffic(requests_per_s=40, prompt_tokens=100_000))
    assert estimate(replace(PLAIN, verifiers=2), prompts) is None
    too_large = replace(QUIET.target, params_billion=70)
    assert estimate(PLAIN, replace(QUIET, target=too_large)) is None


def test_drafters_hold_every_session() -> None:
    roomy = replace(GPUS["A10"], memory_gb=8)
    layout = replace(PAIRED, verifiers=4, drafter=roomy, drafters=2, draft_tokens=2)
    config = replace(QUIET, traffic=Traffic(requests_per_s=3, prompt_tokens=4000))
    small = replace(layout, drafter=replace(roomy, memory_gb=4))
    draft = small.draft(config)
    assert draft is not None
    held = draft.held_sequences(config.drafter_context_tokens)
    assert held == 5
    assert expected(layout, config).sessions > 2 * held
    assert estimate(small, config) is None
    assert expected(replace(small, drafters=3), config).sessions <= 3 * held


def test_more_machines_are_never_slower() -> None:
    busy = replace(QUIET, traffic=Traffic(requests_per_s=6))
    by_verifiers = [expected(replace(PLAIN, verifiers=n), busy).token_s for n in (1, 2, 4, 8)]
    assert by_verifiers == sorted(by_verifiers, reverse=True)
    by_drafters = [expected(replace(PAIRED, drafters=n), busy).token_s for n in (1, 2, 4, 8)]
    assert by_drafters == sorted(by_drafters, reverse=True)


def test_a_simulation_is_the_same_for_the_same_seed() -> None:
    config = replace(QUIET, traffic=Traffic(requests_per_s=4, output_tokens=64))
    first, again, other = (
        play(PAIRED, config, requests=40, warm_up=10, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_simulated_lone_session_takes_a_step_for_each_token() -> None:
    played = play(PLAIN, QUIET, requests=3, warm_up=0)
    step_s = PLAIN.target(QUIET).step_s(1, 1, QUIET.traffic.context_tokens)
    assert played.token_s == pytest.approx(step_s)
    assert played.first_token_s == pytest.approx(PLAIN.target(QUIET).prefill_s(100))


def test_a_perfect_draft_is_never_waited_for_where_it_fits_into_a_step() -> None:
    """Acceptance 1: every round commits five tokens, and drafting ahead hides all of it."""
    slow = ModelSize(params_billion=30, layers=48, kv_heads=8, head_size=128)
    config = replace(QUIET, acceptance=1.0, target=slow, round_trip_ms=0.2)
    layout = replace(PAIRED, drafter=GPUS["H100"])
    played = play(layout, config, requests=3, warm_up=0)
    step_s = layout.target(config).step_s(1, 5, config.traffic.context_tokens)
    assert played.token_s == pytest.approx(step_s / 5, rel=0.05)
    assert expected(layout, config).token_s == pytest.approx(step_s / 5, rel=0.05)


@dataclass(frozen=True)
class Case:
    layout: Layout
    config: PlanConfig
    expected: Estimate
    played: Played

    @property
    def ratio(self) -> float:
        return self.expected.token_s / self.played.token_s


def drawn(chance: random.Random) -> tuple[Layout, PlanConfig]:
    """Draws a fleet and its traffic."""
    config = PlanConfig(
        target=ModelSize(
            params_billion=chance.choice([3, 8, 14, 30]), layers=36, kv_heads=8, head_size=128
        ),
        draft=ModelSize(
            params_billion=chance.choice([0.3, 0.6, 1.5]), layers=24, kv_heads=4, head_size=64
        ),
        acceptance=chance.uniform(0.4, 0.9),
        round_trip_ms=chance.choice([0.2, 1.0, 5.0, 15.0]),
        traffic=Traffic(
            requests_per_s=chance.uniform(1, 25),
            prompt_tokens=chance.choice([64, 256, 1024]),
            output_tokens=chance.choice([64, 128]),
        ),
        assumptions=Assumptions(most_sequences=32),
    )
    drafting = chance.random() < 0.8
    layout = Layout(
        verifier=GPUS[chance.choice(["A100-80", "H100", "H200"])],
        verifiers=chance.randint(1, 5),
        drafter=GPUS[chance.choice(["T4", "L4", "A10", "L40S"])] if drafting else None,
        drafters=chance.randint(1, 6) if drafting else 0,
        draft_tokens=chance.randint(1, 6) if drafting else 0,
    )
    return layout, config


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Random fleets below the load that a plan allows."""
    chance = random.Random(6)
    found: list[Case] = []
    while len(found) < FLEETS:
        layout, config = drawn(chance)
        known = estimate(layout, config)
        if known is None or known.load > config.goal.most_load:
            continue
        warm_up = max(60, round(2 * known.sessions))
        played = play(layout, config, requests=250, warm_up=warm_up, seed=len(found))
        found.append(Case(layout, config, known, played))
    return found


def test_the_estimate_is_near_what_a_simulation_shows(cases: list[Case]) -> None:
    errors = [abs(case.ratio - 1) for case in cases]
    assert max(errors) < TOLERANCE, [(case.ratio, case.layout) for case in cases]
    assert median(errors) < MEDIAN_TOLERANCE


def test_first_tokens_are_near_at_half_load(cases: list[Case]) -> None:
    light = [case for case in cases if case.expected.load < 0.5]
    errors = [case.expected.first_token_s / case.played.first_token_s - 1 for case in light]
    assert len(light) > FLEETS // 3
    assert median(map(abs, errors)) < 0.15


def test_drafters_are_as_busy_as_they_are_said_to_be_where_they_are_full(cases: list[Case]) -> None:
    full = [case for case in cases if case.layout.drafters and case.expected.drafter_busy > 0.97]
    assert full
    assert median(case.played.drafter_busy for case in full) > 0.9
