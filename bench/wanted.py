"""Which ratios the bench shows, and what each should be at least."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bench.settings import DRAFT, HYBRIDS, LOCKSTEP, PEERS, PLAIN, Settings, at_once

ENGINE, TRANSFORMERS, ASSISTED = PEERS["engine"], PEERS["transformers"], PEERS["assisted"]
LLAMA, LLAMA_DRAFT = PEERS["llama"], PEERS["llama-draft"]
VLLM, VLLM_DRAFT = PEERS["vllm"], PEERS["vllm-draft"]


@dataclass(frozen=True)
class Wanted:
    """One variant against another."""

    over: str
    under: str
    least: float
    domain: str | None = None
    """Of one domain's prompts only."""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return f"{self.over} / {self.under}" + (f" ({self.domain})" if self.domain else "")


SHORT = (
    Wanted(DRAFT, PLAIN, 1.5),
    Wanted("medusa", PLAIN, 1.6),
    Wanted("eagle", PLAIN, 1.3),
    Wanted("lookahead", PLAIN, 1.15),
    Wanted("ngram", PLAIN, 1.5, "repeating"),
    Wanted(PLAIN, ENGINE, 0.9),
    Wanted(PLAIN, TRANSFORMERS, 1.0),
    Wanted(at_once(PLAIN, 8), PLAIN, 3.0),
    Wanted(at_once(DRAFT, 8), at_once(PLAIN, 8), 0.98),
    Wanted(at_once(PLAIN, 8), at_once(TRANSFORMERS, 8), 1.0),
)

MORE = (
    Wanted(DRAFT, PLAIN, 2.2),
    Wanted(DRAFT, LOCKSTEP, 1.3),
    Wanted(PLAIN, TRANSFORMERS, 2.0),
    Wanted(DRAFT, TRANSFORMERS, 4.0),
    Wanted(DRAFT, ASSISTED, 2.5),
    Wanted(PLAIN, LLAMA, 1.0),
    Wanted(DRAFT, LLAMA, 1.0),
    Wanted(DRAFT, LLAMA_DRAFT, 1.0),
    Wanted(PLAIN, VLLM, 1.0),
    Wanted(DRAFT, VLLM, 1.0),
    Wanted(DRAFT, VLLM_DRAFT, 1.0),
    Wanted(at_once(PLAIN, 16), at_once(LLAMA, 16), 1.0),
    Wanted(at_once(PLAIN, 16), at_once(VLLM, 16), 1.0),
    Wanted(at_once(PLAIN, 16), at_once(PLAIN, 1), 5.0),
    Wanted(at_once(DRAFT, 16), at_once(PLAIN, 1), 5.0),
)
"""Of the full profile; where both name a ratio, this holds."""

HYBRID_LEAST = 0.97
"""Of a hybrid against each of its members, and so against the best of them."""


def wanted(settings: Settings, measured: Collection[str]) -> list[Wanted]:
    """Return the ratios of which both sides were measured."""
    every = list(SHORT)
    if settings.full:
        every += MORE
        every += [Wanted(at_once(DRAFT, n), at_once(PLAIN, n), 0.98) for n in settings.concurrency]
        every += [Wanted(one, part, HYBRID_LEAST) for one in HYBRIDS for part in one.split("+")]
    by_name = {one.name: one for one in every}
    return [one for one in by_name.values() if {one.over, one.under} <= set(measured)]
