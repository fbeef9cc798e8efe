"""From passes to figures: one row a variant, and the ratios."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from bench.confidence import Grid, grid, rate, ratio, whole
from bench.measurement import Pass
from bench.prompts import Prompt
from bench.report import Load, Ratio, Row
from bench.round_trips import HALF_STEP_LEAST, RoundTrips
from bench.settings import Settings
from bench.wanted import wanted

Domains = Mapping[str, Sequence[int]]
"""Indices of each domain's prompts."""


def by_domain(prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    """Return which prompts belong to which domain."""
    domains: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        domains.setdefault(prompt.domain, []).append(index)
    return domains


def row(name: str, passes: Sequence[Pass], plain: Sequence[Pass], domains: Domains) -> Row:
    """Sum up a variant that decodes one prompt after the other.

    Args:
        name: The variant's.
        passes: Its repetitions.
        plain: Those of what it is compared with.
        domains: Which prompts belong to which.
    """
    return Row(
        name=name,
        tokens_per_s=rate(grid(passes)),
        speedup=ratio(grid(passes), grid(plain)),
        by_domain={domain: rate(grid(passes, part)) for domain, part in domains.items()},
        speedup_by_domain={
            domain: ratio(grid(passes, part), grid(plain, part)) for domain, part in domains.items()
        },
        repetitions=[one.tokens_per_s for one in passes],
        mean_accepted_length=mean_accepted_length(passes),
        acceptance_rate=acceptance_rate(passes),
        same_ids=same_ids(passes, plain[0]),
    )


def load(
    method: str,
    concurrency: int,
    passes: Sequence[Pass],
    plain: Sequence[Pass],
    *,
    unseen: bool = False,
) -> Load:
    """Sum up a variant that decodes several prompts at once; see `row`.

    Args:
        method: Its method, or what a peer is called.
        concurrency: Prompts at once.
        passes: Its repetitions.
        plain: Those of plain decoding, one prompt at a time.
        unseen: Whether its prompts were others than those.
    """
    return Load(
        method=method,
        concurrency=concurrency,
        tokens_per_s=rate(whole(passes)),
        repetitions=[one.tokens_per_s for one in passes],
        mean_accepted_length=mean_accepted_length(passes),
        cached_share=cached_share(passes),
        same_ids=None if unseen else same_ids(passes, plain[0]),
    )


def ratios(
    settings: Settings,
    measured: Mapping[str, Sequence[Pass]],
    single: Collection[str],
    domains: Domains,
) -> list[Ratio]:
    """Compare what is to be compared.

    Args:
        settings: Say which profile.
        measured: All passes, by variant.
        single: The variants that decode one prompt after the other.
        domains: Which prompts belong to which.
    """

    def arranged(name: str, domain: str | None) -> Grid:
        if name not in single:
            return whole(measured[name])
        return grid(measured[name], domains[domain] if domain else None)

    return [
        Ratio(
            name=one.name,
            value=ratio(arranged(one.over, one.domain), arranged(one.under, one.domain)),
            wanted=one.least,
        )
        for one in wanted(settings, measured)
        if one.domain is None or one.domain in domains
    ]


def delayed_ratios(delays: RoundTrips) -> list[Ratio]:
    """Compare drafting with a round trip of half a step and without."""
    return [
        Ratio(
            name=f"draft, {row.round_trip_ms:g} ms round trip (half a step) / without",
            value=row.kept,
            wanted=HALF_STEP_LEAST,
        )
        for row in delays.rows
        if row.round_trip_ms == delays.half_step_ms
    ]


def mean_accepted_length(passes: Sequence[Pass]) -> float | None:
    """Return tokens a target pass; None where nobody counted passes."""
    samples = [sample for one in passes for sample in one.samples]
    rounds = sum(sample.speculation.rounds for sample in samples if sample.speculation)
    return sum(len(sample.ids) for sample in samples) / rounds if rounds else None


def acceptance_rate(passes: Sequence[Pass]) -> float | None:
    """Return the share of checked draft tokens that were committed; None where none was."""
    stats = [s.speculation for one in passes for s in one.samples if s.speculation]
    drafted = sum(s.drafted_tokens for s in stats)
    return sum(s.accepted_tokens for s in stats) / drafted if drafted else None


def cached_share(passes: Sequence[Pass]) -> float | None:
    """Return the share of prompt tokens that were cached; None where nobody counted."""
    samples = [sample for one in passes for sample in one.samples]
    asked = sum(sample.prompt_tokens for sample in samples)
    return sum(sample.cached_tokens for sample in samples) / asked if asked else None


def same_ids(passes: Sequence[Pass], baseline: Pass) -> int:
    """Return how many prompts have the baseline's ids in every pass."""
    return sum(
        all(one.samples[index].ids == sample.ids for one in passes)
        for index, sample in enumerate(baseline.samples)
    )
