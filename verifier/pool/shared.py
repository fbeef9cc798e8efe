"""N-grams that sequences share, as a proposer sees them: always at hand, never waited for.

Implemented by `common.store.pools`; engines know nothing of where the n-grams are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

from common.ngrams import Tables


class SharedPool(Tables, Protocol):
    """One tenant's n-grams. No method blocks or raises."""

    def add(self, ids: Seq[int]) -> None:
        """Takes a stretch of committed text: its n-grams of `ngram_tokens` tokens each."""

    def expect(self, tokens: Iterable[int]) -> None:
        """Contexts that begin with these will soon be asked for."""


class SharedPools(Protocol):
    """The n-grams of all tenants, kept apart."""

    @property
    def ngram_tokens(self) -> int:
        """Tokens of an n-gram; contexts are shorter by at least one."""

    def of(self, tenant: str) -> SharedPool:
        """The pool of one tenant."""
