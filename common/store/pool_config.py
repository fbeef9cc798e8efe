"""Configuration of shared n-gram pools."""

from __future__ import annotations

from dataclasses import dataclass

from common.config_checks import at_least
from common.errors import ConfigError

_MOST_TOKENS = 16
"""Of an n-gram."""


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """Sizes of shared n-gram pools."""

    ngram_tokens: int = 4
    """Tokens of an n-gram, from 2 to 16."""
    members: int = 64
    """N-grams kept for one first token; the least frequent go."""
    ttl_s: float = 86_400.0
    """Time after its last write that a first token's n-grams live, in seconds."""
    half_life_s: float = 21_600.0
    """Time in which an occurrence loses half its weight, in seconds. Verifiers share n-grams with
    those that have the same."""
    max_bytes: int = 16 << 20
    """Memory all pools of a store may take there, in bytes; the longest unwritten go."""
    cache_bytes: int = 32 << 20
    """Memory they may take in this process, in bytes."""
    refresh_s: float = 30.0
    """Time after which what is known is asked for again, in seconds."""
    flush_s: float = 0.2
    """Time for which writes gather, in seconds: the longer, the less each n-gram costs this process
    and the store."""
    most_waiting: int = 65_536
    """N-grams that may wait to be written; more are dropped and counted."""

    def __post_init__(self) -> None:
        at_least(self, "pools.", ngram_tokens=2, members=1, ttl_s=1, half_life_s=1)
        at_least(self, "pools.", max_bytes=1 << 16, cache_bytes=1 << 16, refresh_s=0.01)
        at_least(self, "pools.", flush_s=0, most_waiting=1)
        if self.ngram_tokens > _MOST_TOKENS:
            problem = f"must be at most {_MOST_TOKENS}, got {self.ngram_tokens}"
            raise ConfigError(f"pools.ngram_tokens: {problem}")
