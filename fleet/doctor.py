"""What is wrong with a fleet, why, and what to change: pure functions over what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleet import pair_checks, worker_checks
from fleet.finding import Evidence, Finding, Severity

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    worker_checks.no_verifiers,
    worker_checks.unusable_workers,
    pair_checks.tokenizers,
    pair_checks.no_drafters,
    worker_checks.queues,
    worker_checks.caches,
    worker_checks.pool_sizes,
    pair_checks.pair_speeds,
    pair_checks.idle_drafters,
    worker_checks.vocabularies,
    worker_checks.numerics,
    worker_checks.versions,
    worker_checks.mixed_pools,
    worker_checks.models_without_text,
)
"""All checks, in the order in which equally bad findings are told."""


def findings(evidence: Evidence) -> list[Finding]:
    """Returns all that is wrong, errors first."""
    found = [finding for check in CHECKS for finding in check(evidence)]
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)
