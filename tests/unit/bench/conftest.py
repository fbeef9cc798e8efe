"""A report with figures of our own choice."""

from __future__ import annotations

import pytest

from bench import summary
from bench.confidence import Estimate
from bench.report import Ratio, Report
from bench.round_trips import RoundTrip, RoundTrips
from tests.unit.bench.samples import one_pass, sample


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=0.9 * value, high=1.1 * value)


@pytest.fixture
def report() -> Report:
    plain = [one_pass(sample(100, 1.0, (1, 2)), sample(100, 1.0, (3,)))] * 2
    draft = [one_pass(sample(100, 0.5, (1, 2)), sample(100, 0.5, (4,)))] * 2
    domains = {"dialogue": [0], "story": [1]}
    trips = [
        RoundTrip(
            round_trip_ms=delay_ms,
            measured=estimate(rate),
            predicted=1.1 * rate if delay_ms else None,
            kept=estimate(rate / 200),
        )
        for delay_ms, rate in ((0.0, 200.0), (5.0, 150.0))
    ]
    return Report(
        settings={"threads": 1},
        prompts=2,
        rows=[
            summary.row("plain", plain, plain, domains),
            summary.row("draft", draft, plain, domains),
        ],
        loads=[summary.load("plain", count, plain, plain) for count in (1, 8)],
        round_trips=RoundTrips(
            plain=estimate(100.0),
            half_step_ms=5.0,
            drafter_token_ms=0.8,
            drafter_way_ms=0.4,
            hits={"4": 0.5},
            besides_ms={"4": 0.2},
            rows=trips,
        ),
        ratios=[Ratio(name="draft / plain", value=estimate(2.0), wanted=2.5)],
        left_out=["medusa: this deployment does not offer medusa"],
        gateway_rss_bytes=100 << 20,
    )
