"""Who calls, and what that one may do."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a tenant may take at a time of one gateway process; None is no limit of its own."""

    max_concurrent: int | None = None
    """Requests that run at a time."""

    tokens_per_s: float | None = None
    """Tokens of prompts and outputs in a second, on average. What is resumed counts once more."""

    burst_tokens: float | None = None
    """Tokens at once; None is what ten seconds give."""

    @property
    def burst(self) -> float:
        """Tokens at once."""
        return self.burst_tokens or 10 * (self.tokens_per_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """One authenticated caller."""

    tenant: str
    """Whose limits, sessions and caches are used; callers of different ones share nothing."""

    models: frozenset[str] | None = None
    """Models that may be used and seen; None is all."""

    operator: bool = False
    """Whether the whole fleet may be seen and changed."""

    limits: Limits = field(default_factory=Limits)
    """Of the tenant as a whole."""


ANYONE = Caller(tenant="")
"""Who calls a gateway that asks nobody who he is."""
