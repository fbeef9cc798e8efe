"""What one process knows of shared n-grams: tables by first token, bounded in memory.

Owned by the engine's thread; tables that come from elsewhere are built before they get here.
"""

from __future__ import annotations

import math
import sys

from common.ngrams import Contexts

Ngram = tuple[int, ...]

_BYTES = 256
"""What a context takes in memory, about; a third of it where n-grams are compiled."""


class Table(Contexts):
    """N-grams with one first token, as counts of what follows each context that begins there.

    Args:
        asked_at: When the store was last asked for it, in seconds of the monotonic clock.
    """

    def __init__(self, asked_at: float = -math.inf) -> None:
        super().__init__(order=1, most=sys.maxsize)  # its cache bounds it
        self.asked_at = asked_at


class Cache:
    """Tables by tenant and first token, the longest unused dropped first.

    Two generations stand in for an exact order of use: when the younger is full the older goes,
    and what is asked for again is young again.

    Args:
        most_bytes: Memory it may take, by an estimate.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = max(most_bytes // _BYTES // 2, 1)
        self._young: dict[tuple[str, int], Table] = {}
        self._old: dict[tuple[str, int], Table] = {}
        self._contexts = 0  # of the younger generation

    def __len__(self) -> int:
        return sum(map(len, self._young.values())) + sum(map(len, self._old.values()))

    def get(self, tenant: str, first: int) -> Table | None:
        """The table of one first token."""
        key = (tenant, first)
        table = self._young.get(key)
        if table is None:
            table = self._old.pop(key, None)
            if table is not None:
                self._keep(key, table)
        return table

    def put(self, tenant: str, first: int, table: Table) -> None:
        """Takes a table in place of the one that is there."""
        key = (tenant, first)
        self._old.pop(key, None)
        replaced = self._young.pop(key, None)
        self._contexts -= len(replaced) + 1 if replaced is not None else 0
        self._keep(key, table)

    def add(self, tenant: str, ngram: Ngram) -> None:
        """Counts an n-gram once."""
        table = self.get(tenant, ngram[0])
        if table is None:
            table = Table()
            self._keep((tenant, ngram[0]), table)
        before = len(table)
        table.add_ngram(ngram, 1.0)
        self._contexts += len(table) - before
        self._age()

    def _keep(self, key: tuple[str, int], table: Table) -> None:
        self._age()
        if len(table) >= self._most:  # one that alone is too much begins anew
            table = Table()
        self._young[key] = table
        self._contexts += len(table) + 1

    def _age(self) -> None:
        """Begins a new generation where this one is full; the one before it goes."""
        if self._contexts >= self._most:
            self._old, self._young, self._contexts = self._young, {}, 0
