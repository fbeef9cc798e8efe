from __future__ import annotations

import json

import pytest
from paceline import Speculation

from bench import prompts
from bench.report import Report, ratio, row
from bench.variants import Measurement


def measurement(tokens: int, seconds: float, *outputs: tuple[int, ...]) -> Measurement:
    return Measurement(tokens=tokens, seconds=seconds, outputs=list(outputs))


def speculation(rounds: int, drafted: int, accepted: int) -> Speculation:
    return Speculation("draft", "coupled", rounds, drafted, accepted, (), 0.0, 0.0, lossy=False)


def test_a_row_is_the_median_and_says_how_many_outputs_agree() -> None:
    baseline = measurement(1, 1.0, (1, 2), (3, 4))
    passes = [
        measurement(100, 2.0, (1, 2), (3, 4)),
        measurement(100, 1.0, (1, 2), (3, 4)),
        measurement(100, 4.0, (1, 2), (3, 5)),
    ]
    summed = row("draft", passes, baseline)
    assert summed.tokens_per_s == 50.0
    assert summed.repetitions == [50.0, 100.0, 25.0]
    assert summed.same_ids == 1
    assert summed.mean_accepted_length is None
    assert summed.acceptance_rate is None


def test_statistics_are_totals_not_means_of_means() -> None:
    one = measurement(9, 1.0, (0,) * 10, (0,) * 2)
    one.speculation = [speculation(2, 10, 8), speculation(2, 5, 0)]
    summed = row("draft", [one], one)
    assert summed.mean_accepted_length == pytest.approx(12 / 4)
    assert summed.acceptance_rate == pytest.approx(8 / 15)


def test_ratios_pair_the_repetitions() -> None:
    """A slow moment that hits both variants leaves their ratio alone."""
    passes = {
        "fast": [measurement(200, 1.0), measurement(200, 10.0), measurement(200, 1.0)],
        "slow": [measurement(100, 1.0), measurement(100, 10.0), measurement(100, 1.0)],
    }
    assert ratio("fast / slow", passes, "fast", "slow", 1.5).value == pytest.approx(2.0)


def test_a_report_is_written_both_ways() -> None:
    one = measurement(100, 2.0, (1, 2))
    report = Report(
        settings={"threads": 1},
        prompts=1,
        rows=[row("plain", [one], one)],
        ratios=[ratio("plain / plain", {"plain": [one]}, "plain", "plain", 1.0)],
        gateway_rss_bytes=100 << 20,
    )
    assert json.loads(report.to_json())["rows"][0]["tokens_per_s"] == 50.0
    text = report.to_markdown()
    assert "| plain | 50.0 | 50–50 | – | – | 1/1 |" in text
    assert "| plain / plain | 1.00 | ≥ 1.00 |" in text
    assert "100 MiB" in text


def test_prompts_cover_three_domains_evenly() -> None:
    domains = [prompt.domain for prompt in prompts.load()]
    assert {domain: domains.count(domain) for domain in domains} == {
        "dialogue": 4,
        "arithmetic": 4,
        "story": 4,
    }
