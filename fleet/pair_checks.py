"""What is wrong with verifiers and drafters as pairs.

The speed rules follow from the rate model. A draft token is worth its time only where it is
cheaper, in verifier steps, than it is likely to be right (Leviathan et al. 2023: speculation gains
where the acceptance exceeds draft time over verify time). Drafting ahead hides round trip and
drafting behind the verifier's step only while both together fit into it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet.finding import Evidence, Finding, error, grouped, model_of, ready, warning
from fleet.snapshot import Measured, Pair, Tier

LEAST_ACCEPTANCE = 0.5
"""Below it more draft tokens are thrown away than kept."""
LEAST_EVIDENCE_TOKENS = 200
"""Draft tokens a pair must have had checked before its measures count."""


def tokenizers(evidence: Evidence) -> Iterator[Finding]:
    """Drafters whose ids mean something else."""
    verifiers = {worker.address for worker in ready(evidence, Tier.VERIFIER)}
    for drafter in ready(evidence, Tier.DRAFTER):
        pairs = [pair for pair in evidence.now.pairs_of(drafter) if pair.verifier in verifiers]
        if pairs and all(pair.misfit for pair in pairs):
            reasons = "; ".join(sorted({pair.misfit for pair in pairs}))
            yield error(
                f"drafter {drafter.address} ({model_of(drafter)}) fits no verifier: {reasons}",
                "a draft is token ids: they must stand for the same text in both models",
                "give it a model that was trained or distilled with the target's own tokenizer "
                "files (`paceline train distill` makes one)",
            )


def no_drafters(evidence: Evidence) -> Iterator[Finding]:
    """Verifiers that could be drafted for and are not."""
    for model, verifiers in sorted(grouped(ready(evidence, Tier.VERIFIER), model_of).items()):
        wanting = {w.address for w in verifiers if w.identity and "draft" in w.identity.methods}
        drafters = {worker.address for worker in ready(evidence, Tier.DRAFTER)}
        fitting = any(
            pair.verifier in wanting and pair.drafter in drafters and not pair.misfit
            for pair in evidence.now.pairs
        )
        if wanting and not fitting:
            yield warning(
                f"no drafter is ready for {model}",
                "its verifiers decode without a draft model, whatever requests ask for; where none "
                "is configured, the method draft is refused",
                "start drafters whose tokenizer is the target's, or see what is said of those "
                "that are there",
            )


def idle_drafters(evidence: Evidence) -> Iterator[Finding]:
    """Drafters that fit and are offered to nobody."""
    verifiers = {worker.address for worker in ready(evidence, Tier.VERIFIER)}
    for drafter in ready(evidence, Tier.DRAFTER):
        pairs = [
            pair
            for pair in evidence.now.pairs_of(drafter)
            if pair.verifier in verifiers and not pair.misfit
        ]
        if pairs and not any(pair.offered for pair in pairs):
            yield warning(
                f"drafter {drafter.address} fits, but no verifier is offered it",
                "others gain more, or it lost time where it was tried",
                "look at `paceline fleet pairs`; scale its pool down, or give it a better model "
                "or a place nearer to the verifiers",
            )


def pair_speeds(evidence: Evidence) -> Iterator[Finding]:
    """Pairs that gain less than they could."""
    for pair in evidence.now.pairs:
        verifier = evidence.now.worker(pair.verifier)
        measured = pair.measured
        if measured is None or measured.drafted_tokens < LEAST_EVIDENCE_TOKENS:
            continue
        yield from _acceptance(pair, measured)
        step_ms = verifier.load.step_ms if verifier and verifier.load else 0.0
        if step_ms > 0:
            yield from _ratio(pair, measured, step_ms)
            yield from _way(pair, measured, step_ms)
        if 0 < measured.gain < 1:
            yield warning(
                f"{_named(pair)}: gain {measured.gain:.2f}, slower than without drafts",
                "its drafts cost more time than the tokens they save",
                "see what else is said of the pair; else take the drafter away from this verifier",
            )


def _acceptance(pair: Pair, measured: Measured) -> Iterator[Finding]:
    if 0 < measured.acceptance < LEAST_ACCEPTANCE:
        yield warning(
            f"{_named(pair)}: acceptance {measured.acceptance:.0%}, below {LEAST_ACCEPTANCE:.0%}",
            "the draft model guesses other tokens than the target would take",
            "distil the drafter from this target on text like your traffic (`paceline train "
            "distill`), take a larger one, or lower the temperature where that is possible",
        )


def _ratio(pair: Pair, measured: Measured, step_ms: float) -> Iterator[Finding]:
    ratio = measured.draft_ms / step_ms
    ahead_ms = (measured.draft_tokens + 1) * measured.draft_ms
    if 0 < measured.acceptance <= ratio:
        yield warning(
            f"{_named(pair)}: a draft token takes {measured.draft_ms:.1f} ms, {ratio:.0%} of a "
            f"verify step ({step_ms:.1f} ms), and {measured.acceptance:.0%} are right",
            "drafting one costs more than it brings, at any length",
            "a smaller draft model, a faster GPU for it, or fewer verifiers on each drafter",
        )
    elif ahead_ms > step_ms:
        yield warning(
            f"{_named(pair)}: drafting {measured.draft_tokens:.1f} tokens ahead takes "
            f"{ahead_ms:.0f} ms, a verify step {step_ms:.0f} ms",
            "the verifier waits for the rest of each draft",
            "a smaller draft model, a faster GPU for it, or more drafters for the load",
        )


def _way(pair: Pair, measured: Measured, step_ms: float) -> Iterator[Finding]:
    if measured.round_trip_ms > step_ms:
        remedy = "move drafters into the verifier's zone; below a step the round trip is hidden"
        if measured.lane == "none":
            remedy += "; a --lane-port of drafters takes off what is gRPC's, half a millisecond"
        yield warning(
            f"{_named(pair)}: round trip {measured.round_trip_ms:.1f} ms, longer than a verify "
            f"step ({step_ms:.1f} ms)",
            "drafts made ahead come too late, however fast the drafter is",
            remedy,
        )


def _named(pair: Pair) -> str:
    return f"verifier {pair.verifier} with drafter {pair.drafter}"
