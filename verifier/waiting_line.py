"""Who waits for admission, and whose turn it is: fair among tenants, first come within one.

A verifier tells tenants apart by their cache salts. The tenant that was given the least so far
goes first, counted in rows: of the prompt at admission, and of each step after that. A tenant
that comes back begins where those who wait are, so being away saves nothing up (the virtual
token counter of Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Of two
tenants that always have something waiting, neither gets ahead by more than its largest prompt
and what runs of it.
"""

from __future__ import annotations

from collections import deque

from verifier.sequence import Sequence

_MOST_TENANTS = 1024
"""Tenants whose rows are remembered though none of theirs waits."""


class WaitingLine:
    """The line of one engine."""

    def __init__(self) -> None:
        self._lines: dict[bytes, deque[Sequence]] = {}
        self._rows: dict[bytes, int] = {}
        self._floor = 0  # rows of the tenant that was let in last, before that

    def append(self, sequence: Sequence) -> None:
        """Takes a newcomer, behind all others of its tenant."""
        tenant = sequence.tenant
        if tenant not in self._lines:
            least = min((self.rows(line[0]) for line in self._lines.values()), default=0)
            self._rows[tenant] = max(self.rows(sequence), least)
            self._lines[tenant] = deque()
        self._lines[tenant].append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Takes one that was let in before and had to give way, before all others of its tenant."""
        self._rows[sequence.tenant] = self.rows(sequence)
        self._lines.setdefault(sequence.tenant, deque()).appendleft(sequence)

    def first(self) -> Sequence | None:
        """Whose turn it is; None where nobody waits."""
        heads = (line[0] for line in self._lines.values())
        return min(heads, key=lambda head: (self.rows(head), head.ticket), default=None)

    def admit(self, sequence: Sequence, rows: int) -> None:
        """Lets the first one in.

        Args:
            sequence: As `first` named it.
            rows: Of its prompt, that are to be computed; one that was put back has paid already.
        """
        self.remove(sequence)
        if not sequence.begun:
            self._floor = self.rows(sequence)
            self.charge(sequence, rows)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, where it waits at all."""
        line = self._lines.get(sequence.tenant, deque())
        if sequence in line:
            line.remove(sequence)
            if not line:
                del self._lines[sequence.tenant]

    def charge(self, sequence: Sequence, rows: int) -> None:
        """Counts rows that are computed for a sequence, to its tenant."""
        self._rows[sequence.tenant] = self.rows(sequence) + rows
        if len(self._rows) > _MOST_TENANTS + len(self._lines):
            self._rows = {tenant: self._rows[tenant] for tenant in self._lines}

    def rows(self, sequence: Sequence) -> int:
        """Rows that the sequence's tenant was given, or would have been had it always been here."""
        return max(self._rows.get(sequence.tenant, 0), self._floor)
