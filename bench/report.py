"""What a run of the bench found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from bench.confidence import Estimate
from bench.round_trips import RoundTrips


@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant that decodes one prompt after the other."""

    name: str
    tokens_per_s: Estimate
    """Total tokens over total decode time, median of the repetitions."""

    speedup: Estimate
    """Over plain decoding through the same gateway, median of the repetitions' ratios."""

    by_domain: dict[str, Estimate]
    """Tokens a second in each domain."""

    speedup_by_domain: dict[str, Estimate]
    """Over plain decoding of the same domain."""

    repetitions: list[float]
    """Tokens a second of each."""

    mean_accepted_length: float | None
    """Tokens committed per target pass; None where nobody counted."""

    acceptance_rate: float | None
    """Share of checked draft tokens that were committed; None where nothing was drafted."""

    same_ids: int
    """Prompts whose ids are those of plain decoding."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """One method with several prompts at once."""

    method: str
    concurrency: int
    """Prompts at once."""

    tokens_per_s: Estimate
    """All of them together, by the clock on the wall; median of the repetitions."""

    repetitions: list[float]
    """Tokens a second of each."""

    mean_accepted_length: float | None
    """Tokens committed per target pass."""

    cached_share: float | None
    """Share of the prompts' tokens whose keys and values were cached, which prefill skips; None
    where nobody counted."""

    same_ids: int | None
    """Prompts whose ids are those of plain decoding, one at a time; None where the prompts were
    others."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Two variants compared: median of the repetitions' ratios."""

    name: str
    value: Estimate
    wanted: float
    """At least this."""

    @property
    def met(self) -> str:
        """Whether it is: yes or no, and likely or doubtful where it lies within the confidence."""
        value, low, high = self.value.value, self.value.low, self.value.high
        if low is not None and high is not None and low < self.wanted <= high:
            return "likely" if value >= self.wanted else "doubtful"
        return "yes" if value >= self.wanted else "no"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run of the bench."""

    settings: dict[str, str | float]
    prompts: int
    rows: list[Row]
    loads: list[Load]
    round_trips: RoundTrips | None
    """None where that part was not run."""

    ratios: list[Ratio]
    left_out: list[str]
    """A line for each thing asked for that could not be measured."""

    gateway_rss_bytes: int
    interrupted: bool = False
    """Whether somebody had it end early."""

    def to_json(self) -> str:
        """Return it on one line."""
        return json.dumps(asdict(self))
